"""Turns prompts into requests and completions into text: where agents touch the tokenizer."""

import dataclasses
from collections.abc import Iterable

from acesearch_jax.agents import prompts
from acesearch_jax.agents.transcript import Transcript
from acesearch_jax.data.tasks import Kind
from acesearch_jax.models.tokenizer import Tokenizer
from acesearch_jax.sampling.request import Completion, Request, SamplingParams


@dataclasses.dataclass(frozen=True)
class Conversation:
  """One-turn conversations with the policy.

  Attributes:
    tokenizer: of the policy.
    few_shot: show two worked examples before every prompt.
  """

  tokenizer: Tokenizer
  few_shot: bool = False

  def prompt(self, role: prompts.Role, kind: Kind, text: str) -> tuple[int, ...]:
    """Ids of the chat that ends with the user turn `text` and the header of the reply."""
    shots = prompts.examples(role, kind) if self.few_shot else ()
    return tuple(self.tokenizer.chat_prompt(prompts.messages(text, shots)))

  def response(self, text: str) -> tuple[int, ...]:
    """Ids of a reply, its end-of-turn token included."""
    return (*self.tokenizer.encode(text), self.tokenizer.eos_id)

  def requests(
    self, prompt: tuple[int, ...], identities: Iterable[tuple[int | str, ...]], params: SamplingParams
  ) -> list[Request]:
    """One request an identity, all with the same prompt; they end at the end of the turn."""
    params = dataclasses.replace(params, stop=tuple((token,) for token in self.tokenizer.stop_ids))
    return [Request(prompt, identity, params) for identity in identities]

  def read(self, request: Request, completion: Completion) -> tuple[Transcript, str]:
    """The transcript, and the reply as text without its end-of-turn token."""
    tokens = completion.tokens.tolist()
    if tokens and tokens[-1] in self.tokenizer.stop_ids:
      tokens = tokens[:-1]
    return Transcript.single_turn(request.prompt, completion), self.tokenizer.decode(tokens)
