"""Section `rollout`: servers, concurrency, staleness, timeouts."""

from areal_like.config.fields import Auto, config, key, must_follow, no_effect
from areal_like.config.sections.engines.keys import SHIPPED

ENGINES = tuple(keys.name for keys in SHIPPED)


@config
class InferenceEngineConfig:
    """Rollouts: which servers generate, how many groups are in flight, and how stale they may get."""

    experiment_name: str | None = key("${experiment_name}", rules=(must_follow(),))
    """Experiment under whose name servers are looked up. Follows the experiment's own."""

    trial_name: str | None = key("${trial_name}", rules=(must_follow(),))
    """Trial under whose name servers are looked up. Follows the experiment's own."""

    max_concurrent_rollouts: int | None = key(None, ge=1)
    """Maximum number of groups in flight; a group is a prompt with all its samples. Null: `consumer_batch_size`."""

    queue_size: int | None = key(None, ge=1)
    """Maximum number of groups that wait for a start or for the trainer. Null: 16 times `max_concurrent_rollouts`."""

    consumer_batch_size: int = key("${train_dataset.batch_size}", ge=1, rules=(must_follow(),))
    """Number of groups per training step. Follows `train_dataset.batch_size`."""

    max_head_offpolicyness: int = key(0, ge=0)
    """Maximum staleness: number of weight versions that the oldest token of a group may lag behind the weights in
    training. 0 is synchronous: generation waits for each update. From 1 on both overlap; use `actor.use_decoupled_loss`
    then."""

    enable_rollout_tracing: bool = key(False)
    """Log each stage of each rollout, to find what hangs. Verbose."""

    dump_to_file: bool = key(False)
    """Save the answers of each training step: `rollouts/step_000020.jsonl` in the run directory has their texts, token
    ids, rewards and messages of conversations. `python -m launcher rewards RUN` scores them by other rewards."""

    dump_steps: int | None = key(200, ge=1, rules=(no_effect(unless="dump_to_file"),))
    """Number of steps whose answers are kept, the latest ones. Null: all."""

    check_trajectory_format: bool = key(False)
    """Check every field of every trajectory that a workflow returns. For developing a workflow."""

    schedule_policy: str = key("round_robin", choices=("round_robin", "least_loaded"))
    """How a group's server is chosen: in rotation, or the one with the fewest outstanding tokens. All samples and turns
    of a group stay on one server."""

    setup_timeout: float = key(120.0, gt=0)
    """Timeout until all servers are ready, in seconds. Large models and first compilations need more. Also that of
    loading an environment of verifiers, and of its rows."""

    request_timeout: float = key(3600.0, gt=0)
    """Timeout of one request to a server, in seconds."""

    call_timeout: float = key(60.0, gt=0)
    """Timeout in seconds of a server's calls to its engine that neither generate nor load weights, such as an abort or
    its statistics, and of the end of requests that it has aborted. Three calls in a row that an attached vLLM or SGLang
    (`server_addresses`) does not answer end the run."""

    request_retries: int = key(3, ge=0)
    """Number of retries of a failed request before its episode fails."""

    pause_grace_period: float = key(0.0, ge=0)
    """Seconds between pausing the servers and sending them new weights."""

    update_mode: str = key("auto", choices=("auto", "keep", "abort", "wait"))
    """What happens to requests while a server loads new weights. `keep`: they are paused, and continue with the new
    weights; `abort`: they are interrupted, and sent again with the tokens generated so far; `wait`: they finish first,
    and no new ones start. `auto` is the first of these that the server supports."""

    backend: str = key("auto")
    """Inference engine ({engines} or your own), optionally with its sizes: `sglang:d4t2` is 4 replicas of 2 GPUs each.
    `auto` or empty takes what this machine can run, and the plan gives the reason."""

    num_episode_workers: int | Auto = key("auto", ge=1, le=1024)
    """Number of processes that run workflows and rewards. `auto` derives it from the number of cores."""

    refill: bool = key(True)
    """Replace groups that dynamic sampling or the curriculum removed, so that every batch is full. False trains on the
    smaller batch."""

    allow_mismatched_sampling: bool = key(False)
    """Train although answers are sampled in a way that the trainer cannot reproduce (top-p, top-k, min-p, penalties).
    The importance ratios are then wrong; the metrics show by how much."""

    oversampling_factor: float = key(1.0, ge=1)
    """Groups started, as a multiple (rounded up) of those that the batch still needs, to wait less for the slowest.
    Surplus groups go into the next batch if they are fresh enough."""

    mask_env_responses: bool = key(True)
    """Exclude tokens between the answers of a conversation, which an environment, a tool or the chat template wrote,
    from the loss. False trains on them like on tokens of the model; their importance ratio begins at 1."""

    trajectory_strategy: str = key("interleaved", choices=("interleaved", "branching"))
    """`interleaved` joins all turns of a conversation into one sequence as long as each prompt continues the text
    before it, and starts another where it does not. `branching` makes one sequence per turn. All sequences of a
    conversation have its reward."""

    server_addresses: list[str] = key([])
    """Running servers to use, as host:port or http://host:port/v1; they get the weights of a run that trains. `python
    -m launcher --config FILE serve` starts such servers. Empty: the run starts its own."""

    server_type: str = key("auto", choices=("auto", *ENGINES, "openai"))
    """Type of the servers at `server_addresses`, without which it has no effect; `auto` detects it. `embedded` is every
    server started by this framework, with any engine. `openai` is any service like https://api.openai.com/v1: it cannot
    load new weights, so it is for evaluations alone, of the model that `actor.path` names there, at its address."""

    api_key_var: str = key("OPENAI_API_KEY")
    """Name of the environment variable with the API key: of `server_addresses`, and of the servers that `serve` starts.
    Keep the key itself in a file of `launcher.env_file`."""

    open_generation: str = key("loopback", choices=("loopback", "always", "never"))
    """Whether servers of `serve` generate for callers without the key of `api_key_var`: `loopback` (if they listen on
    loopback only), `always`, or `never`. Servers of a training run never do."""

    host: str | None = key(None)
    """Address that servers of the run listen on. Null: loopback on one node, the node's address on several."""

    port: int = key(0, ge=0, le=65535)
    """Port of the first server; the next ones follow. 0: free ports."""
