"""The calls of one agent as a tree: which call continues which, by ids, and the training samples that follow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class PromptDraft:
    """A prompt whose `rest` is not tokenized yet; what `begun.ids` has was sampled or tokenized before."""

    begun: CallPrompt
    rest: str
    special: bool = False
    """Whether the rest gets the model's special tokens, such as a first one."""

    def completed(self, ids: list[int]) -> CallPrompt:
        """`ids` are those of the rest."""
        return replace(self.begun, ids=[*self.begun.ids, *ids])


@dataclass(eq=False)
class AgentCall:
    """One answer that an agent got. `reply` is the message that it was sent, `written` the one that was sampled, and
    `text` all that was sampled, with the token that ended it."""

    id: str
    prompt: CallPrompt
    sample: Sample
    reply: Message
    written: Message
    text: str
    num_tool_calls: int = 0
    num_tool_errors: int = 0
    """Of these: those that are none, or of a tool that there is not."""
    is_delivered: bool = False
    reward: float | None = None

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt.ids, *self.sample.token_ids]

    @property
    def unended_ids(self) -> list[int]:
        """Without the token that ended the answer."""
        return self.token_ids[:-1] if self.sample.ends_by_token else self.token_ids


class CallTree:
    """Finds the call that a new prompt continues. Texts and messages are compared, and the ids that were sampled stay;
    only what follows them is tokenized."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.calls: list[AgentCall] = []
        self._tokenizer = tokenizer

    def chat_prompt(self, messages: list[Message], tools: Any) -> PromptDraft:
        """An answer of an earlier call is rendered as it was sampled. Where the template writes what is before it in
        another way, or the client has changed it, the prompt begins a new sequence: a break. Of equal answers the
        client continues one that it has got."""
        earlier = [call for call in self.calls if call.prompt.tools == tools and _continues(messages, call)]
        parent = max(earlier, key=lambda call: (len(call.prompt.messages or ()), call.is_delivered), default=None)
        if parent is None:
            text = self._render(messages, tools)
            is_break = any(_same(message, call.reply) for message in messages for call in self.calls)
            return PromptDraft(CallPrompt([], text, messages, messages, tools, None, is_break), text)
        parent.is_delivered = True  # the client repeats it
        seen = len(parent.prompt.messages or ()) + 1
        rendered = [*parent.prompt.rendered, parent.written, *messages[seen:]]
        text = self._render(rendered, tools)
        before = parent.prompt.text + parent.text
        if not text.startswith(before):
            return PromptDraft(CallPrompt([], text, messages, rendered, tools, None, True), text)
        return PromptDraft(CallPrompt(parent.token_ids, text, messages, rendered, tools, parent), text[len(before) :])

    def text_prompt(self, text: str) -> PromptDraft:
        """Continues a call whose prompt and answer it begins with. Without the token that ended the answer, which
        clients do not see, it is a break: the sampled ids stay, and a new sequence begins."""
        earlier = [call for call in self.calls if call.prompt.messages is None and call.prompt.text]
        parent = _longest(call for call in earlier if text.startswith(call.prompt.text + call.text))
        cut = _longest(call for call in earlier if _repeats_visible(text, call))
        if cut is not None and (parent is None or len(cut.token_ids) > len(parent.token_ids)):
            before = cut.prompt.text + self._unended_text(cut)
            if text.startswith(before):
                return PromptDraft(CallPrompt(cut.unended_ids, text, is_break=True), text[len(before) :])
            return PromptDraft(CallPrompt([], text, is_break=True), text, special=True)
        if parent is None:
            return PromptDraft(CallPrompt([], text), text, special=True)
        parent.is_delivered = True  # the client repeats it
        return PromptDraft(
            CallPrompt(parent.token_ids, text, parent=parent), text[len(parent.prompt.text + parent.text) :]
        )

    def ids_prompt(self, ids: list[int]) -> CallPrompt:
        """Continues the call whose ids it begins with. Without the id that ended the answer it is a break."""
        parent = _longest(call for call in self.calls if ids[: len(call.token_ids)] == call.token_ids)
        cut = _longest(call for call in self.calls if _repeats_unended(ids, call))
        if cut is not None and (parent is None or len(cut.token_ids) > len(parent.token_ids)):
            return CallPrompt(ids, is_break=True)
        if parent is not None:
            parent.is_delivered = True  # the client repeats it
        return CallPrompt(ids, parent=parent)

    def delivered(self) -> list[AgentCall]:
        return [call for call in self.calls if call.is_delivered]

    def records(self, observed_in_loss: bool) -> list[tuple[TokenRecord, AgentCall]]:
        """Sequences, with the last call of each. Each answer that was delivered stands in one of them. The first call
        that continues another one extends its sequence; a second one, a branch, begins a sequence with the shared
        tokens as its prompt. What was observed before several answers is in the loss of the first one alone."""
        records: list[TokenRecord] = []
        ends: dict[AgentCall, TokenRecord] = {}
        seen: set[tuple[int, ...]] = set()
        for call in self.delivered():
            parent, ids = call.prompt.parent, tuple(call.prompt.ids)
            in_loss = observed_in_loss and ids not in seen
            seen.add(ids)
            record = ends.pop(parent, None) if parent is not None else None
            if parent is None or record is None:
                record = record_of(call, in_loss)
                records.append(record)
            else:
                record.observe(call.prompt.ids[len(parent.token_ids) :], in_loss)
                record.answer(call.sample)
            ends[call] = record
        last = {id(record): call for call, record in ends.items()}
        return [(record, last[id(record)]) for record in records]

    def single_records(self, observed_in_loss: bool) -> list[tuple[TokenRecord, AgentCall]]:
        """Each answer by itself."""
        records, seen = [], set[tuple[int, ...]]()
        for call in self.delivered():
            ids = tuple(call.prompt.ids)
            records.append((record_of(call, observed_in_loss and ids not in seen), call))
            seen.add(ids)
        return records

    def _unended_text(self, call: AgentCall) -> str:
        ids = call.sample.token_ids
        return self._tokenizer.decode(ids[:-1] if call.sample.ends_by_token else ids, skip_special=False)

    def _render(self, messages: Sequence[Message], tools: Any) -> str:
        return self._tokenizer.chat.render(messages, add_generation_prompt=True, tools=tools or None)


def record_of(call: AgentCall, observed_in_loss: bool) -> TokenRecord:
    """One answer by itself: what is before it is its prompt."""
    known = 0 if call.prompt.parent is None else len(call.prompt.parent.token_ids)
    record = TokenRecord(call.prompt.ids[:known] if known else call.prompt.ids)
    if known:
        record.observe(call.prompt.ids[known:], in_loss=observed_in_loss)
    record.answer(call.sample)
    return record


def _longest(calls: Iterable[AgentCall]) -> AgentCall | None:
    """Of equal ones one that a client has got."""
    return max(calls, key=lambda call: (len(call.token_ids), call.is_delivered), default=None)


def _repeats_visible(text: str, call: AgentCall) -> bool:
    """Begins with the prompt and what the client saw of the answer. An empty answer is in every repeated prompt."""
    seen = call.sample.text
    return bool(seen.strip()) and text.startswith(call.prompt.text + seen)


def _repeats_unended(ids: list[int], call: AgentCall) -> bool:
    unended = call.unended_ids
    return len(call.prompt.ids) < len(unended) < len(call.token_ids) and ids[: len(unended)] == unended


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
