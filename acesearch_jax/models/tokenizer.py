"""Text to token ids and back, and chat prompts in token space.

Control ids (`<|im_start|>` and the like) enter a prompt only where the chat template puts them: every
message is untrusted text, and untrusted text never turns into a control id, whatever it spells.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence

import jinja2
import tokenizers
from etils import epath
from tokenizers import decoders, models, pre_tokenizers

from acesearch_jax import files
from acesearch_jax.errors import UserError

# Some templates print today's date unless they are given one; a prompt must not depend on the day.
_TEMPLATE_DATE = '26 Jul 2024'


class Tokenizer:
  """A vocabulary with its chat template.

  Attributes:
    bos_id: the token a document begins with, if the vocabulary has one. `encode` never adds it.
    eos_id: the token that ends a turn.
    pad_id: fills rows; it may equal `eos_id`, so padding is told by length, never by id.
    stop_ids: every token that ends a reply, ascending; `eos_id` is one of them.
    control_ids: ids that only a chat template or the policy may write.
    chat_template: Jinja source, '' for none.
  """

  def __init__(
      self,
      backend: tokenizers.Tokenizer,
      chat_template: str,
      eos_id: int,
      bos_id: int | None = None,
      pad_id: int | None = None,
      stop_ids: Collection[int] = (),
  ):
    """Wraps `backend`, whose added tokens (special or not) are the control tokens."""
    backend.no_truncation()
    backend.no_padding()
    self._backend = backend
    self._plain = _without_control_tokens(backend)
    self.chat_template = chat_template
    self.bos_id = bos_id
    self.eos_id = eos_id
    self.pad_id = eos_id if pad_id is None else pad_id
    self.stop_ids = tuple(sorted({eos_id, *stop_ids}))
    self._control = {token.content: id_ for id_, token in backend.get_added_tokens_decoder().items()}
    self.control_ids = frozenset(self._control.values())
    for content in self._control:
      if self.control_ids.intersection(self.encode(content)):
        raise UserError(
            f'The tokenizer spells its control token {content!r} from plain text, so prompts cannot be '
            'kept safe; use another model.'
        )

  @functools.cached_property
  def vocab_size(self) -> int:
    """One more than the greatest id."""
    return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

  @functools.cached_property
  def fingerprint(self) -> str:
    """16 hex digits that differ when vocabulary, merges or chat template do."""
    model = json.loads(self._backend.to_str())['model']
    merges = [merge.split(' ') if isinstance(merge, str) else merge for merge in model.get('merges', [])]
    parts = [sorted(self._backend.get_vocab(with_added_tokens=True).items()), merges, self.chat_template]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

  def encode(self, text: str) -> list[int]:
    """The ids of plain, untrusted text: no control id, no BOS or EOS.

    Characters that the vocabulary cannot spell at all (a few bytes in some vocabularies) are dropped;
    lone surrogates, which JSON lets through and Unicode does not, become question marks.
    """
    text = text.encode('utf-8', 'replace').decode()
    return self._plain.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[int]) -> str:
    """The text of `ids`; control tokens are spelt out, ids outside the vocabulary skipped."""
    return self._backend.decode([int(id_) for id_ in ids], skip_special_tokens=False)

  def chat_prompt(
      self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
  ) -> list[int]:
    """Renders a conversation to token ids.

    The template is rendered with a placeholder for each message's text. Its control tokens become ids;
    what lies between two of them, template text and message text together, is encoded as one piece of
    plain text. So harmless messages give exactly the ids of rendering first and tokenising afterwards
    (merges across the border included), and no message can write a control id. A template that looks
    inside a message sees only its outer whitespace and the placeholder.

    Args:
      messages: `{'role': ..., 'content': ...}` each. Roles are trusted, contents are not. The
        template's default system message, if it has one, is put in when the first is no system message.
      add_generation_prompt: end with the header of the assistant's turn.

    Raises:
      UserError: there is no chat template, or it refuses these messages or leaves one out.
    """
    if not self.chat_template:
      raise UserError('The model has no chat template; use its instruct version.')
    contents = {}
    rendered_messages = []
    for i, message in enumerate(messages):
      content = message['content']
      core = content.strip()
      if core:  # Whitespace around it stays visible, for templates that trim.
        placeholder = f'CONTENT{i}OF{len(messages)}PLACEHOLDER'
        contents[placeholder] = core
        content = content.replace(core, placeholder, 1)
      rendered_messages.append({**message, 'content': content})
    text = self._render(rendered_messages, add_generation_prompt)
    missing = [placeholder for placeholder in contents if placeholder not in text]
    if missing:
      raise UserError(f'The chat template leaves out the message {contents[missing[0]][:60]!r}.')
    return self._encode_rendered(text, contents)

  def _encode_rendered(self, text: str, contents: Mapping[str, str]) -> list[int]:
    """Encodes template output, filling the placeholders with untrusted text."""
    if not self._control and not contents:
      return self.encode(text)
    # Longest first, as the tokenizer itself matches.
    marks = sorted([*self._control, *contents], key=len, reverse=True)
    ids: list[int] = []
    run: list[str] = []
    for piece in re.split('(' + '|'.join(map(re.escape, marks)) + ')', text):
      if piece in contents:
        run.append(contents[piece])
      elif piece in self._control:
        ids += self.encode(''.join(run))
        ids.append(self._control[piece])
        run = []
      else:
        run.append(piece)
    return ids + self.encode(''.join(run))

  def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    try:
      return self._renderer.apply_chat_template(
          messages,
          tokenize=False,
          add_generation_prompt=add_generation_prompt,
          date_string=_TEMPLATE_DATE,
      )
    except jinja2.TemplateError as error:
      raise UserError(f'The chat template refuses these messages: {error}.') from error

  @functools.cached_property
  def _renderer(self):
    # Imported late: it takes a second, and only chat templates need it. It would advise to install torch.
    os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')
    import transformers

    names = {'bos_token': self.bos_id, 'eos_token': self.eos_id, 'pad_token': self.pad_id}
    special = {name: self._backend.id_to_token(id_) for name, id_ in names.items() if id_ is not None}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=self._backend, chat_template=self.chat_template, **special
    )

  def save(self, directory: epath.PathLike) -> None:
    """Writes the files of a Hugging Face tokenizer, which `load` and transformers both read."""
    directory = epath.Path(directory)
    config = {
        'tokenizer_class': 'PreTrainedTokenizerFast',
        'bos_token': None if self.bos_id is None else self._backend.id_to_token(self.bos_id),
        'eos_token': self._backend.id_to_token(self.eos_id),
        'pad_token': self._backend.id_to_token(self.pad_id),
        'clean_up_tokenization_spaces': False,
    }
    files.write_text(directory / 'tokenizer.json', self._backend.to_str())
    files.write_json(directory / 'tokenizer_config.json', config)
    if self.chat_template:
      files.write_text(directory / 'chat_template.jinja', self.chat_template)
    generation = {'eos_token_id': list(self.stop_ids), 'pad_token_id': self.pad_id}
    if self.bos_id is not None:
      generation['bos_token_id'] = self.bos_id
    files.write_json(directory / 'generation_config.json', generation)

  @classmethod
  def load(cls, directory: epath.PathLike) -> 'Tokenizer':
    """Reads the tokenizer of a Hugging Face folder, without the network.

    Args:
      directory: holds tokenizer.json and tokenizer_config.json; chat_template.jinja and
        generation_config.json (further stop tokens) where the model has them.

    Raises:
      UserError: a file is missing or broken, or no end-of-turn token is named.
    """
    directory = epath.Path(directory)
    path = directory / 'tokenizer.json'
    if not path.exists():
      raise UserError(f'{directory} has no tokenizer.json; save the tokenizer in its fast form there.')
    try:
      backend = tokenizers.Tokenizer.from_str(path.read_text())
    except Exception as error:  # The library raises bare Exception for any malformed file.
      raise UserError(f'{path} is not a valid tokenizer ({error}); fetch it again.') from error
    config = files.read_json(directory / 'tokenizer_config.json')

    def special_id(name: str) -> int | None:
      token = config.get(name)
      token = token.get('content') if isinstance(token, dict) else token
      return None if token is None else backend.token_to_id(token)

    generation_path = directory / 'generation_config.json'
    generation = files.read_json(generation_path) if generation_path.exists() else {}
    stop_ids = generation.get('eos_token_id', [])
    stop_ids = [stop_ids] if isinstance(stop_ids, int) else stop_ids or []
    eos_id = special_id('eos_token')
    if eos_id is None:
      raise UserError(f'{directory / "tokenizer_config.json"} names no eos_token of the vocabulary; add it.')
    return cls(
        backend,
        _read_chat_template(directory, config),
        eos_id=eos_id,
        bos_id=special_id('bos_token'),
        pad_id=special_id('pad_token'),
        stop_ids=stop_ids,
    )


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    control_tokens: Sequence[str],
    split_digits: bool = True,
) -> tokenizers.Tokenizer:
  """A byte-level BPE tokenizer (GPT-2's, with the digits split one by one if asked).

  Args:
    tokens: the vocabulary in the order of ids, bytes spelt in GPT-2's alphabet.
    merges: pairs of tokens, best first.
    control_tokens: those of `tokens` that are matched whole and never spelt.
    split_digits: every digit is a token of its own.
  """
  backend = tokenizers.Tokenizer(
      models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=list(merges))
  )
  byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
  if split_digits:
    byte_level = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
  backend.pre_tokenizer = byte_level
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(
      [tokenizers.AddedToken(token, special=True, normalized=False) for token in control_tokens]
  )
  return backend


def _without_control_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """A copy that reads every added token, the non-special ones too, as the text that it spells."""
  description = json.loads(backend.to_str())
  for token in description['added_tokens']:
    token['special'] = True
  plain = tokenizers.Tokenizer.from_str(json.dumps(description))
  plain.encode_special_tokens = True
  return plain


def _read_chat_template(directory: epath.Path, config: Mapping[str, object]) -> str:
  path = directory / 'chat_template.jinja'
  if path.exists():
    return path.read_text()
  template = config.get('chat_template') or ''
  if isinstance(template, list):  # Several named templates.
    template = {entry['name']: entry['template'] for entry in template}.get('default', '')
  return template
