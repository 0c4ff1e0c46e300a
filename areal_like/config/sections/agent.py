"""Section `agent`: a program that talks to the policy by OpenAI's or Anthropic's interface, trained as it is."""

from areal_like.config.fields import config, key, no_effect

ANSWER, RESULT, POSTED = "answer", "result", "posted"
ONLY_MARKED = no_effect(unless="call_format", unless_is=("json", "xml"))


@config
class AgentConfig:
    """The program that the workflow `agent` runs for each sample. It finds the policy by the variables
    `OPENAI_BASE_URL` and `OPENAI_API_KEY`, or `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY`."""

    command: list[str] = key([])
    """Program and its arguments, such as `[python, agent.py]`, with the row as JSON on its standard input. `python` is
    that of the run; a file `*.py` is searched beside the experiment's file, then in the working directory, where the
    program runs."""

    function: str | None = key(None)
    """Instead of `command`: a function, also an async one, as `package.module:thing` or `file.py:thing`, which runs in
    a thread of the worker. It gets what it has parameters for of `row`, `base_url`, `api_key` and `client`, a client of
    the package openai."""

    reward_from: str = key(ANSWER, choices=(ANSWER, RESULT, POSTED))
    """Where the reward comes from. `answer`: `reward.name` or the task scores the last answer that the agent got.
    `result`: the last line that the program prints, or what the function returns, is the number, or has it as `reward`.
    `posted`: the agent sends `{"reward": 0.5}` to `$OPENAI_BASE_URL/reward`."""

    turn_discount: float | None = key(None, ge=0, le=1)
    """Train each call as a sample of its own: its reward is the one posted for it (`{"id": ..., "reward": ...}`) plus
    that of the next call times this; the reward of the episode counts for the last one. Null: all samples of an
    episode have its reward."""

    failed_reward: float | None = key(None)
    """Reward of an agent that got an answer and then failed: another exit code than 0, an exception, a limit, no valid
    reward. Null: none, as if its reward had failed (`reward.max_failed_share`)."""

    sampling: str = key("gconfig", choices=("gconfig", "request"))
    """Temperature, top-p and so on: always those of `gconfig` (`evaluator.gconfig`), or those that the agent asks for,
    which training refuses where they differ. Lengths and stop texts of the agent hold in both cases."""

    timeout_s: float = key(600.0, gt=0)
    """Most seconds of one episode. The agent is then stopped, and has failed."""

    max_calls: int | None = key(100, ge=1)
    """Most calls of one episode; further ones are refused. Null: no limit."""

    max_concurrent: int = key(16, ge=1)
    """Most agents that each episodes worker runs at the same time."""

    max_memory_gb: float | None = key(4.0, gt=0)
    """Most memory of each process of `command`. Null: no limit."""

    call_format: str = key("json", choices=("json", "xml", "python"))
    """How an answer calls tools. `json`: an object with `name` and `arguments` between marks, as Hermes and Qwen write;
    `xml`: `<function=add><parameter=a>1</parameter></function>` between marks, as Qwen3-Coder; `python`: the answer is
    a list as `[add(a=1)]`, as Llama."""

    call_start: str = key("<tool_call>", rules=(ONLY_MARKED,))
    """The mark before a call."""

    call_end: str = key("</tool_call>", rules=(ONLY_MARKED,))
    """The mark after it."""
