"""Routes of the gateway that generate nothing: `/v1/models`, `/v1/reward`, `/tokenize` and `/detokenize`."""

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response
from areal_like.rollout.episodes.gateway.chat_messages import read_messages, read_tools
from areal_like.rollout.episodes.gateway.request_body import flag, prompt_ids, read_body_object
from areal_like.rollout.episodes.gateway.session import AgentSession

MODEL = "policy"


async def models(request: web.Request, session: AgentSession) -> web.Response:
    """Requests may name any model: there is one."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "", "max_model_len": session.context_length}
    return json_response({"object": "list", "data": [model]})


async def reward(request: web.Request, session: AgentSession) -> web.Response:
    """`{"reward": 0.5}`, with `id` that of one answer."""
    body = await read_body_object(request, session.limits)
    call_id = body.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise HttpError(400, "id: give the id of an answer")
    session.post_reward(body.get("reward"), call_id)
    return json_response({"status": "ok"})


async def tokenize(request: web.Request, session: AgentSession) -> web.Response:
    """Of a text, or of messages as the next prompt has them, also without the beginning of the answer to them."""
    body = await read_body_object(request, session.limits)
    if body.get("messages") is not None:
        shown, tools = read_messages(body["messages"]), read_tools(body.get("tools"))
        opens = body.get("add_generation_prompt") is None or flag(body, "add_generation_prompt")
        ids = (await session.chat_prompt(shown, tools)).ids if opens else await session.unopened_ids(shown, tools)
    elif isinstance(body.get("prompt"), str):
        ids = await session.encode(body["prompt"], special=body.get("add_special_tokens") is not False)
    else:
        raise HttpError(400, "prompt: give a text, or messages")
    strs = None
    if flag(body, "return_token_strs"):
        strs = session.tokenizer.decode_all([[token] for token in ids], skip_special=False)
    return json_response(
        {"count": len(ids), "max_model_len": session.context_length, "tokens": ids, "token_strs": strs}
    )


async def detokenize(request: web.Request, session: AgentSession) -> web.Response:
    body = await read_body_object(request, session.limits)
    ids = prompt_ids("tokens", body.get("tokens"))
    return json_response({"prompt": session.tokenizer.decode(ids, skip_special=False)})
