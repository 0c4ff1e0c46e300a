"""`python -m areal_like.rollout.episodes.try_main --run-dir DIR --index 0`: sends rows to the servers of a run, and
writes what `try` prints."""

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from areal_like.data.checked_rows import CheckedRows
from areal_like.data.data_record import RECORD
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.data.votes import vote_rule
from areal_like.discovery import NameStore, open_name_store, parse_entry
from areal_like.process.entrypoint import end_process, run_process
from areal_like.process.errors import FinalFailure
from areal_like.process.http import HttpClient, run_async
from areal_like.process.identity import SERVER, Identity, token
from areal_like.process.patience import PATIENCE_KEY, patience_s
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.rollout.episodes.episode import AnswerSource
from areal_like.rollout.episodes.generation_client import GenerationClient, GenerationError, LeaseRoute
from areal_like.rollout.episodes.try_report import NO_ANSWERS, REPORT, report
from areal_like.rollout.episodes.try_rows import spread_rows, try_rows
from areal_like.rollout.settings import num_servers


def main(run: Run, me: Identity) -> None:
    run_async(_main(run, me))


async def _main(run: Run, me: Identity) -> None:
    config, rollout = run.config, run.config.rollout
    with open_name_store(run, me) as names, (run.directory / REPORT).open("w", encoding="utf-8") as file:
        async with HttpClient(me, token()) as http:
            waits = rollout.request_timeout, rollout.request_retries
            client = GenerationClient(http, *waits, _no_other_server, any_weights=True)

            async def opened(_: TextTokenizer, rows: CheckedRows) -> tuple[AnswerSource, Mapping[int, int | None]]:
                return ServedAnswers(client, await asyncio.to_thread(_addresses, config, names)), spread_rows(rows)

            groups = try_rows(config, SearchFolders(run.folder, run.cwd), opened, run.directory / RECORD)
            try:
                has_answers = await report(
                    groups, vote_rule(config.actor), lambda line: print(line, file=file, flush=True)
                )
            finally:
                await client.close()
    if not has_answers:
        raise FinalFailure(NO_ANSWERS)


class ServedAnswers:
    """The model on the servers, which take rows in turn. As no trainer has published it, its version is the first."""

    def __init__(self, client: GenerationClient, addresses: Iterable[str]) -> None:
        self._client, self._addresses = client, itertools.cycle(addresses)

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        route.server = route.server or next(self._addresses)
        samples = await self._client.generate(route, group)
        return [{**sample, "versions": [0] * len(sample["token_ids"])} for sample in samples]


def _addresses(config: Any, names: NameStore) -> list[str]:
    """Waits until all servers are ready."""
    wait = NamedWait("the inference servers", patience_s(config, SERVER), PATIENCE_KEY)
    return [
        parse_entry(names.wait(Identity(SERVER, number).name, wait)).address for number in range(num_servers(config))
    ]


async def _no_other_server(_: str, gone: str) -> str:
    raise GenerationError(f"the server at {gone} is gone")


if __name__ == "__main__":
    end_process(run_process(main))
