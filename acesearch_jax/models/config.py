"""The shape and numerics of a decoder."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """A decoder of the Llama family.

  Attributes:
    vocab_size: V.
    width: D, of the residual stream.
    num_layers: L.
    num_heads: query heads (N).
    num_kv_heads: key/value heads (K), divides num_heads.
    head_dim: H.
    mlp_width: F.
    rope_theta: base of the rotary frequencies.
    norm_eps: added to the mean square in RMSNorm.
    max_length: longest context in tokens.
    tie_embeddings: the output head is the embedding table.
    qkv_bias: query, key and value have biases (Qwen2).
    dtype: of activations and caches ('float32' or 'bfloat16').
    product_dtype: of the operands of products with weights, '' for `dtype`; accumulation is float32.
    param_dtype: of stored parameters.
    remat: recompute each block in the backward pass.
    scan_layers: one scanned block over stacked parameters [L, ...] (training, TPU) or L unrolled
      blocks named `layers_0`... (decoding on CPU, where slicing the stack would copy the weights).
    lora_rank: rank of the low-rank update beside every projection, 0 for none (arXiv 2106.09685).
    lora_alpha: the update is scaled by lora_alpha / lora_rank.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int
  rope_theta: float = 10_000.0
  norm_eps: float = 1e-5
  max_length: int = 2048
  tie_embeddings: bool = True
  qkv_bias: bool = False
  dtype: str = 'float32'
  product_dtype: str = ''
  param_dtype: str = 'float32'
  remat: bool = False
  scan_layers: bool = True
  lora_rank: int = 0
  lora_alpha: float = 16.0

  def replace(self, **changes) -> 'DecoderConfig':
    return dataclasses.replace(self, **changes)

  @property
  def operand_dtype(self) -> str:
    """What the operands of products with weights are rounded to."""
    return self.product_dtype or self.dtype

  @property
  def matmul_params(self) -> int:
    """Parameters that multiply each token: all but the embedding table, the head included."""
    attention = self.width * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
    mlp = 3 * self.width * self.mlp_width
    return self.num_layers * (attention + mlp) + self.width * self.vocab_size
