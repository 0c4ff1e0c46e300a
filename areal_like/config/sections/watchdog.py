"""Section `watchdog`: how long the processes of a run may make no progress."""

from areal_like.config.fields import Auto, config, key


@config
class WatchdogConfig:
    """Limits on how long a process may make no progress. Past its limit it is killed, and the run goes on as after its
    death. `auto` is 300 s, or ten times the longest pause of that role in that phase if that is more, and doubles after
    each such kill, to 3600 s at most. null: never, such as for a debugger."""

    notice_s: float = key(60.0, gt=0)
    """Seconds without progress after which a process is named on the terminal."""

    loading_s: float | Auto | None = key("auto", gt=0)
    """Limit while it starts and loads. CPU time, or bytes that are read or written, count as progress, so that a large
    model may take longer; CPU time alone for 12 times the limit at most, as an endless loop uses it, too. With `auto`
    more than `rollout.setup_timeout`."""

    compiling_s: float | Auto | None = key("auto", gt=0)
    """Limit while layers are compiled or tried. CPU time counts as progress, alone for 12 times the limit at most."""

    generating_s: float | Auto | None = key("auto", gt=0)
    """Limit of an inference engine that has requests and generates no token (of one that counts none: answers no
    request), and of the reward model. With `auto` 12 times 300 s while it uses CPU time, except for an engine that is
    another program and counts tokens. An attached server is not killed: its server process ends, and names it."""

    serving_s: float | Auto | None = key("auto", gt=0)
    """Limit of the event loop of a server, the controller or an episodes worker, which user code may block. With `auto`
    a worker has more than `workflow.block_timeout_s`, by which it ends itself; no limit if that is null."""

    updating_s: float | Auto | None = key("auto", gt=0)
    """Limit of a server that loads new weights, swaps them in, or verifies them. With `auto` more than
    `rollout.setup_timeout`, with direct transfer more than `weights.broadcast.timeout_s`, and 12 times 300 s while it
    uses CPU time."""

    step_s: float | Auto | None = key("auto", gt=0)
    """Limit of a trainer between two micro-batches, or other parts of a step. With `auto` 12 times 300 s while it uses
    CPU time, as on a CPU one part may take long. At most until another rank that waits for it is about to give up, by
    `dist_timeout_s`."""

    collective_s: float | Auto | None = key("auto", gt=0)
    """Limit of trainer ranks that wait for each other. With `auto` more than their `dist_timeout_s`."""

    publishing_s: float | Auto | None = key("auto", gt=0)
    """Limit of a trainer that hands weights to the servers. CPU time (alone for 12 times the limit at most) and bytes
    that are written count as progress. With `auto` and direct transfer more than `weights.broadcast.timeout_s`."""

    saving_s: float | Auto | None = key("auto", gt=0)
    """Limit of the writing of a checkpoint. Bytes that are written, and CPU time (alone for 12 times the limit at
    most), count as progress. With `auto` more than ten times `dist_timeout_s`, for which trainers wait for it."""

    waiting_s: float | Auto | None = key("auto", gt=0)
    """Limit of a process that waits for another one, or is idle, while it is stopped by a signal. The wait itself has a
    limit of its own, such as `rollout.request_timeout`."""

    launcher_s: float | Auto | None = key("auto", gt=0)
    """Limit of the launcher while it is stopped or hangs on a disk, as its guardian sees it, also before and after the
    run's processes: past it all processes of the run are killed, and `resume=` continues it. `auto` is 300 s. While its
    output is not taken (Ctrl-S, a pager) it is named only."""
