"""The calls of one agent as a tree: which call continues which, by ids, and the training samples that follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_like.data.chat_template import ASSISTANT, Message
from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.sample import Sample
from areal_like.rollout.episodes.token_record import TokenRecord


@dataclass(frozen=True)
class CallPrompt:
    """`messages` are as the client sent them, None for a prompt of text or ids; `rendered` as the template got them."""

    ids: list[int]
    text: str = ""
    messages: list[Message] | None = None
    rendered: list[Message] = field(default_factory=list)
    tools: Any = None
    parent: "AgentCall | None" = None
    is_break: bool = False


@dataclass(eq=False)
class AgentCall:
    """One answer that an agent got. `reply` is the message that it was sent, `written` the one that was sampled."""

    id: str
    prompt: CallPrompt
    sample: Sample
    reply: Message
    written: Message
    is_delivered: bool = False
    reward: float | None = None

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt.ids, *self.sample.token_ids]


class CallTree:
    """Finds the call that a new prompt continues. Texts and messages are compared, and the ids that were sampled stay;
    only what follows them is tokenized."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.calls: list[AgentCall] = []
        self._tokenizer = tokenizer

    def chat_prompt(self, messages: list[Message], tools: Any) -> CallPrompt:
        """An answer of an earlier call is rendered as it was sampled. Where the template writes what is before it in
        another way, or the client has changed it, the prompt begins a new sequence: a break."""
        earlier = [call for call in self.calls if call.prompt.tools == tools and _continues(messages, call)]
        parent = max(earlier, key=lambda call: len(call.prompt.messages or ()), default=None)
        if parent is None:
            text = self._render(messages, tools)
            is_break = any(_same(message, call.reply) for message in messages for call in self.calls)
            return CallPrompt(self._encode(text), text, messages, messages, tools, None, is_break)
        parent.is_delivered = True  # the client repeats it
        seen = len(parent.prompt.messages or ()) + 1
        rendered = [*parent.prompt.rendered, parent.written, *messages[seen:]]
        text = self._render(rendered, tools)
        before = self._text_after(parent)
        if not text.startswith(before):
            return CallPrompt(self._encode(text), text, messages, rendered, tools, None, True)
        ids = [*parent.token_ids, *self._encode(text[len(before) :])]
        return CallPrompt(ids, text, messages, rendered, tools, parent)

    def text_prompt(self, text: str) -> CallPrompt:
        """Continues a call whose prompt and answer it begins with."""
        earlier = [call for call in self.calls if _is_text(call) and text.startswith(self._text_after(call))]
        parent = max(earlier, key=lambda call: len(call.token_ids), default=None)
        if parent is None:
            return CallPrompt(self._tokenizer.encode(text), text)
        ids = [*parent.token_ids, *self._encode(text[len(self._text_after(parent)) :])]
        return CallPrompt(ids, text, parent=parent)

    def ids_prompt(self, ids: list[int]) -> CallPrompt:
        """Continues the call whose ids it begins with."""
        earlier = [call for call in self.calls if ids[: len(call.token_ids)] == call.token_ids]
        parent = max(earlier, key=lambda call: len(call.token_ids), default=None)
        return CallPrompt(ids, parent=parent)

    def delivered(self) -> list[AgentCall]:
        return [call for call in self.calls if call.is_delivered]

    def records(self, observed_in_loss: bool) -> list[TokenRecord]:
        """Each answer that was delivered stands in one of them. The first call that continues another one extends its
        sequence; a second one, a branch, begins a sequence with the shared tokens as its prompt."""
        records: list[TokenRecord] = []
        ends: dict[AgentCall, TokenRecord] = {}
        for call in self.delivered():
            parent = call.prompt.parent
            record = ends.pop(parent, None) if parent is not None else None
            if parent is None or record is None:
                record = TokenRecord(call.prompt.ids)
                records.append(record)
            else:
                record.observe(call.prompt.ids[len(parent.token_ids) :], in_loss=observed_in_loss)
            record.answer(call.sample)
            ends[call] = record
        return records

    def _text_after(self, call: AgentCall) -> str:
        return call.prompt.text + self._tokenizer.decode(call.sample.token_ids, skip_special=False)

    def _render(self, messages: Sequence[Message], tools: Any) -> str:
        return self._tokenizer.chat.render(messages, add_generation_prompt=True, tools=tools or None)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False) if text else []


def record_of(call: AgentCall, observed_in_loss: bool) -> TokenRecord:
    """One answer by itself: what is before it is its prompt."""
    known = 0 if call.prompt.parent is None else len(call.prompt.parent.token_ids)
    record = TokenRecord(call.prompt.ids[:known] if known else call.prompt.ids)
    if known:
        record.observe(call.prompt.ids[known:], in_loss=observed_in_loss)
    record.answer(call.sample)
    return record


def _is_text(call: AgentCall) -> bool:
    return call.prompt.messages is None and bool(call.prompt.text)


def _continues(messages: Sequence[Message], call: AgentCall) -> bool:
    before = call.prompt.messages
    if before is None or len(messages) <= len(before):
        return False
    return _same(messages[len(before)], call.reply) and list(messages[: len(before)]) == before


def _same(message: Message, reply: Message) -> bool:
    """Clients may strip a text."""
    if message["role"] != ASSISTANT or message.get("tool_calls") != reply.get("tool_calls"):
        return False
    return bool(message["content"].strip() == reply["content"].strip())
