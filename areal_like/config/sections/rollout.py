"""How rollouts are produced: which servers, how many at once, and how old they may be."""

from areal_like.config.fields import Auto, config, key


@config
class InferenceEngineConfig:
    """Rollouts: which servers generate, how many groups are under way at once, and how stale they may get."""

    experiment_name: str | None = key("${experiment_name}")
    """Experiment under whose name servers are looked up. Follows the experiment's own; another value is refused."""

    trial_name: str | None = key("${trial_name}")
    """Trial under whose name servers are looked up. Follows the experiment's own; another value is refused."""

    max_concurrent_rollouts: int | None = key(None, ge=1)
    """Most groups under way at once; a prompt with all its samples is one group. Null: `consumer_batch_size`."""

    queue_size: int | None = key(None, ge=1)
    """Most groups that may wait, for a start or for the trainer. Null: 16 times the most that may be under way."""

    consumer_batch_size: int = key("${train_dataset.batch_size}", ge=1)
    """Groups that one training step takes. Follows `train_dataset.batch_size`; another value is refused."""

    max_head_offpolicyness: int = key(0, ge=0)
    """How many weight versions the oldest token of a group may lag behind the weights being trained. 0 is synchronous:
    generation waits for each update. From 1 on both run side by side; use `actor.use_decoupled_loss` then."""

    enable_rollout_tracing: bool = key(False)
    """Log each stage of each rollout. Helps to find what hangs; a lot of text."""

    check_trajectory_format: bool = key(False)
    """Check every trajectory that a workflow returns in full, with a precise complaint. For writing a workflow."""

    schedule_policy: str = key("round_robin", choices=("round_robin", "least_loaded"))
    """Which server a group goes to: each in its turn, or the one with the fewest tokens outstanding. All samples and
    turns of a group stay on one server."""

    setup_timeout: float = key(120.0, gt=0)
    """Seconds until all servers must be ready. Large models and first compilations need more."""

    request_timeout: float = key(3600.0, gt=0)
    """Seconds that one request to a server may take in all."""

    request_retries: int = key(3, ge=0)
    """How often a failed request is sent again before its episode counts as failed."""

    pause_grace_period: float = key(0.0, ge=0)
    """Seconds to wait between pausing the servers and giving them new weights, so that they can come to rest."""

    update_mode: str = key("auto", choices=("auto", "keep", "abort", "wait"))
    """What becomes of requests while a server takes new weights. `keep`: they stand still for the moment and go on with
    the new ones; `abort`: they are interrupted, and go on from the tokens that they have; `wait`: they end first, and
    nothing new begins. `auto` is the first of these that the server can do."""

    backend: str = key("auto")
    """What generates (`embedded`, `sglang` or `vllm`) and, if wanted, how it is laid out: `sglang:d4t2` is 4 replicas
    over 2 GPUs each. `auto` or nothing takes what this machine can run, and the plan says why."""

    num_episode_workers: int | Auto = key("auto", ge=1, le=1024)
    """Processes that make prompts and run workflows and rewards. `auto` goes by the number of cores."""

    refill: bool = key(True)
    """Replace groups that dynamic sampling or a gate removed, so that every batch is full. False trains on the smaller
    batch."""

    allow_mismatched_sampling: bool = key(False)
    """Train although answers are sampled in a way that the trainer cannot reproduce (top-p, top-k, min-p, penalties).
    The importance ratios are then wrong by as much as the logs show."""

    oversampling_factor: float = key(1.0, ge=1)
    """Groups asked for, as a multiple of those that the batch still lacks: fewer waits for the slowest. What is left
    over goes into the next batch if it is fresh enough."""

    mask_env_responses: bool = key(True)
    """Leave tokens that an environment or a tool wrote out of the loss. False trains on them as if the model had
    written them."""

    trajectory_strategy: str = key("interleaved", choices=("interleaved", "branching"))
    """`interleaved` makes one sequence of all turns as long as each prompt continues the text before it, and starts
    another where it does not. `branching` makes a sequence of every turn."""

    server_addresses: list[str] = key([])
    """Servers that are running already, as host:port or http://host:port/v1; none is started then, and they are given
    this run's weights.
    `python -m launcher --config FILE serve` starts such. Empty: the run starts its own."""

    server_type: str = key("auto", choices=("auto", "embedded", "sglang", "vllm", "openai"))
    """What answers at `server_addresses`; `auto` asks it. `embedded` is every server of ours, whatever it generates
    with. `openai` is any compatible service: it can generate, but not be given new weights, and so not be trained
    with."""

    api_key_var: str = key("OPENAI_API_KEY")
    """Name of the environment variable with the key for `server_addresses`, and of that with which `serve` starts
    servers. The key itself belongs in no file but one of `launcher.env_file`."""

    open_generation: str = key("loopback", choices=("loopback", "always", "never"))
    """Whether servers of `serve` generate for callers without the key of `api_key_var`: `loopback` where they listen on
    loopback alone, `always`, or `never`. The servers of a run that trains never do."""

    host: str | None = key(None)
    """Address that our servers listen on. Null: loopback on one node, the node's own address on several."""

    port: int = key(0, ge=0, le=65535)
    """Port of the first server; further ones count up from it. 0: free ports, found by name."""
