"""The decoder and both losses in plain NumPy and float64, written from the papers, one row at a time."""

import numpy as np


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def rms_norm(x, scale, eps):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def rotate(x, theta):
  """x: [T, heads, H]; pairs (i, i + H/2) turn by position · theta^(-2i/H)."""
  length, _, dim = x.shape
  angle = np.arange(length)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)[None]
  turn = np.exp(1j * angle)[:, None]
  complex_form = (x[..., : dim // 2] + 1j * x[..., dim // 2 :]) * turn
  return np.concatenate([complex_form.real, complex_form.imag], -1)


def project(params, x, config):
  """x: [T, *inputs] with kernel [*inputs, *outputs]; adapters added where there are any."""
  axes = x.ndim - 1
  y = np.tensordot(x, params['kernel'], axes=axes)
  if 'lora_a' in params:
    low = np.tensordot(x, params['lora_a'], axes=axes)
    y = y + config.lora_alpha / config.lora_rank * np.tensordot(low, params['lora_b'], axes=1)
  return y


def next_token_logps(params, config, tokens):
  """log p(tokens[t + 1] | tokens[: t + 1]) for t = 0..T-2, [T - 1]."""
  params = tree_map(lambda x: np.asarray(x, np.float64), params)
  x = params['embed']['embedding'][np.asarray(tokens)]
  length = len(tokens)
  causal = np.tril(np.ones((length, length), bool))
  groups = config.num_heads // config.num_kv_heads
  for i in range(config.num_layers):
    layer = tree_map(lambda leaf, i=i: leaf[i], params['layers'])
    h = rms_norm(x, layer['attention_norm']['scale'], config.norm_eps)
    attention = layer['attention']
    q = rotate(project(attention['query'], h, config), config.rope_theta)
    k = rotate(project(attention['key'], h, config), config.rope_theta)
    v = project(attention['value'], h, config)
    heads = []
    for head in range(config.num_heads):
      scores = q[:, head] @ k[:, head // groups].T / np.sqrt(config.head_dim)
      heads.append(softmax(np.where(causal, scores, -np.inf)) @ v[:, head // groups])
    x = x + project(attention['out'], np.stack(heads, 1), config)
    h = rms_norm(x, layer['mlp_norm']['scale'], config.norm_eps)
    gate = project(layer['mlp']['gate'], h, config)
    gated = gate / (1 + np.exp(-gate)) * project(layer['mlp']['up'], h, config)
    x = x + project(layer['mlp']['down'], gated, config)
  logits = rms_norm(x, params['final_norm']['scale'], config.norm_eps) @ params['embed']['embedding'].T
  logps = logits - logits.max(-1, keepdims=True)
  logps -= np.log(np.exp(logps).sum(-1, keepdims=True))
  return logps[np.arange(length - 1), np.asarray(tokens)[1:]]


def response_logp(params, config, prompt, response):
  """log p(response | prompt), nats."""
  return next_token_logps(params, config, prompt + response)[len(prompt) - 1 :].sum()


def sft_loss(params, config, examples):
  """Mean negative log-likelihood a response token."""
  total = sum(response_logp(params, config, e.prompt, e.response) for e in examples)
  return -total / sum(len(e.response) for e in examples)


def dpo_loss(params, config, pairs, beta, gamma):
  """Mean over pairs of -log sigmoid(beta · h) + gamma · (-log p(chosen) / tokens)."""
  losses = []
  for pair in pairs:
    chosen = response_logp(params, config, pair.prompt, pair.chosen)
    rejected = response_logp(params, config, pair.prompt, pair.rejected)
    h = chosen - pair.reference_chosen_logp - rejected + pair.reference_rejected_logp
    losses.append(np.log1p(np.exp(-beta * h)) - gamma * chosen / len(pair.chosen))
  return np.mean(losses)


def tree_map(function, tree):
  return {k: tree_map(function, v) for k, v in tree.items()} if isinstance(tree, dict) else function(tree)
