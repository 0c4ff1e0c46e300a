"""Saves the state of the rollout loop for a checkpoint, and restores it."""

from collections.abc import Sequence
from typing import Any

from areal_like.config.benchmarks import SPLIT
from areal_like.config.problems import ConfigError, Problem, plural
from areal_like.data.row_table import other_rows_message
from areal_like.process.errors import Failure, HttpError
from areal_like.rollout.curriculum.curriculum import CurriculumState
from areal_like.rollout.curriculum.pools import DifficultyPools
from areal_like.rollout.groups import Group
from areal_like.rollout.loop import RolloutLoop

FORMAT = 3
WITHOUT_ROWS = (1, 2)
"""Older formats, without what is known of the rows: the data can only begin anew."""
Blob = bytes | memoryview


def snapshot(loop: RolloutLoop, step: int, digest: str) -> tuple[dict[str, Any], list[Blob]]:
    """The state after `step` completed steps: a JSON header and the arrays of finished groups. Running groups will be
    generated again; in synchronous mode so will all groups of the next step."""
    done = loop.batches.done_steps
    if step not in (done, done + 1):
        raise HttpError(409, f"there is no state as of step {step}: the run is at step {done}")
    finished = sorted([*loop.batches.from_step(step), *loop.ready.values()])
    again = loop.queue.pending(loop.leases)
    # Where the step after it is abandoned, its weights may have been published already.
    again = [*again, *(group for group in finished if _newest_version(group) > step)]
    finished = [group for group in finished if _newest_version(group) <= step]
    next_number = loop.queue.next_number
    curriculum = loop.queue.curriculum_state()
    if loop.settings.synchronous:
        if (start := loop.queue.step_start(step)) is not None:
            next_number, again, curriculum = start.next_number, start.again, start.curriculum
        finished = []
    rows = loop.queue.row_order
    # Benchmarks may be others in a resumed run.
    saved = {name: each for name, each in loop.inspection.datasets.items() if not name.startswith(SPLIT)}
    header = {
        "format": FORMAT,
        "step": step,
        "digest": digest,
        "answers": loop.settings.answers,
        "order": _order_of(loop),
        "rows_per_epoch": rows.rows_per_epoch,
        "num_kept": rows.num_kept,
        "inspected": list(saved),
        "origin": rows.origin,
        "first_epoch": rows.first_epoch,
        "next": next_number,
        "again": [[group.number, group.row] for group in sorted(again)],
        "finished": [
            {"group": group.number, "row": group.row, "facts": group.facts, "admitted": group.is_admitted}
            for group in finished
        ],
        "evaluations": loop.evaluations.state(step),
    }
    tables = [blob for dataset in saved.values() for blob in dataset.rows.blobs()]
    names = loop.queue.curriculum.names
    if any(names.values()):
        header |= {"curriculum": curriculum.drawn, "curriculum_of": names, "gates": curriculum.gates}
        tables.append(curriculum.sampler)
    return header, [*(group.blob for group in finished), *tables]


def restore(
    loop: RolloutLoop,
    header: dict[str, Any],
    blobs: Sequence[Blob],
    digest: str,
    begin_data_anew: bool = False,
    forget_curriculum: bool = False,
) -> None:
    """Sets a new loop to the state of the checkpoint."""
    if header["format"] != FORMAT and not (header["format"] in WITHOUT_ROWS and begin_data_anew):
        also = ", or set recover.skip_dataloader=true to start the data from the beginning"
        raise Failure(
            f"resume: the controller's part of the checkpoint has format {header['format']}, and this version reads "
            f"format {FORMAT}; resume with the version that wrote it{also * (header['format'] in WITHOUT_ROWS)}"
        )
    (was, held_out), (now, held_out_now) = (each.partition("/")[::2] for each in (header["digest"], digest))
    if was != now and not begin_data_anew:
        raise ConfigError([Problem("train_dataset", other_rows_message(was, now))])
    queue, first_step = loop.queue, loop.batches.done_steps
    # Where steps are counted from 0 again, the versions of finished groups mean nothing.
    keeps_answers = first_step == header["step"] and not _are_made_otherwise(loop, header)
    queue.next_number = header["next"]
    again: list[Group] = []
    finished: list[Group] = []
    state: CurriculumState | None = None
    if begin_data_anew:
        queue.row_order.begin(header["next"], 0)
    else:
        changed = {"valid"} if held_out != held_out_now else set()
        _restore_rows(loop, header, blobs[len(header["finished"]) :], changed)
        _continue_rows(loop, header)
        again = [queue.make(number, row, tries=1) for number, row in header["again"]]
        if not keeps_answers:
            again += [queue.make(entry["group"], entry["row"], tries=1) for entry in header["finished"]]
        if "curriculum" in header and not forget_curriculum:
            queue.curriculum.check(header.get("curriculum_of", {"sampler": DifficultyPools.name, "gates": []}))
            state = CurriculumState(header["curriculum"], bytes(blobs[-1]), header.get("gates", []))
        for entry, blob in zip(header["finished"], blobs, strict=False) if keeps_answers else ():
            finished.append(queue.make(entry["group"], entry["row"], tries=1))
            finished[-1].facts, finished[-1].blob = entry["facts"], bytes(blob)
            finished[-1].is_admitted = entry.get("admitted", True)
    queue.resume_curriculum(state, header["step"])
    loop.record_event(
        "recovered",
        step=first_step,
        next=queue.next_number,
        again=[group.number for group in again],
        data_anew=begin_data_anew,
        ready=[[group.number, group.oldest_version] for group in finished],
    )
    loop.correct_length()
    for group in again:
        queue.put_back(group)
    for group in finished:
        loop.ready[group.number] = group
        loop.gate.accept_finished()
    loop.drop_stale_groups()
    if first_step == header["step"]:
        loop.evaluations.restore(header["evaluations"])


def _newest_version(group: Group) -> int:
    return max(int(fact["version_max"]) for fact in group.facts)


def _are_made_otherwise(loop: RolloutLoop, header: dict[str, Any]) -> bool:
    """Whether answers of the checkpoint would be others now. Those that were not trained on yet are generated again."""
    before, now = header.get("answers", {}), loop.settings.answers
    if isinstance(before, dict):  # its own version may have known fewer or other keys
        changed = [name for name in now if before.get(name, now[name]) != now[name]]
        why = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since then"
    else:
        changed, why = list(now), "another version of the program wrote it, and what has changed is not known"
    if changed and (finished := header.get("finished")):
        count = plural(len(finished), "finished group")
        loop.warnings.append(f"{count} of the checkpoint: generated again, as {why}")
    return bool(changed)


def _order_of(loop: RolloutLoop) -> list[Any]:
    """What decides the order of the rows."""
    return [loop.settings.seed, loop.settings.shuffle, loop.settings.drop_last]


def _restore_rows(loop: RolloutLoop, header: dict[str, Any], blobs: Sequence[Blob], changed: set[str]) -> None:
    """What is known of the rows, except of datasets that have `changed`."""
    for place, name in enumerate(header["inspected"]):
        if name not in changed and name in loop.inspection.datasets:
            loop.inspection.datasets[name].rows.restore(blobs[2 * place : 2 * place + 2])
    loop.queue.row_order.num_kept = header["num_kept"]


def _continue_rows(loop: RolloutLoop, header: dict[str, Any]) -> None:
    """Continues the order of rows. Where it is another one, or another batch size leaves out another number of rows of
    an epoch, it continues with the next epoch."""
    order = loop.queue.row_order
    same_order = header.get("order", _order_of(loop)) == _order_of(loop)
    if same_order and order.rows_per_epoch == header["rows_per_epoch"]:
        order.begin(header["origin"], header["first_epoch"])
    else:
        epochs = -(-(header["next"] - header["origin"]) // header["rows_per_epoch"])
        order.begin(header["next"], header["first_epoch"] + epochs)
