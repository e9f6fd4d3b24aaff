"""What the server says of itself, and the routes around the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http_serving import MODEL_NAME, Serving, serving, when
from tests.inprocess import CONTEXT_LEN, POOL_TOKENS


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("path", ["/", "/health", "/health_generate", "/ready"])
def test_it_is_up(server: Serving, path: str) -> None:
    assert server.get(path).status_code == 200
    head = server.request("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")


def test_root(server: Serving) -> None:
    assert server.get("/").json()["name"] == "espalier"


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info(server: Serving, path: str) -> None:
    tokenizer = server.service.client.tokenizer
    assert server.get(path).json() == {
        "model_path": "models/tiny.gguf",
        "tokenizer_path": "models/tiny.gguf",
        "served_model_name": MODEL_NAME,
        "is_generation": True,
        "preferred_sampling_params": None,
        "context_length": CONTEXT_LEN,
        "vocab_size": 49_152,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_ids": list(tokenizer.eos_ids),
        "has_chat_template": True,
    }


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info(server: Serving, path: str) -> None:
    info = server.get(path).json()
    assert info["max_total_num_tokens"] == POOL_TOKENS
    assert info["context_length"] == CONTEXT_LEN
    assert info["internal_states"][0]["pool_tokens"] == POOL_TOKENS
    assert info["config"]["port"] == 30000
    assert "api_key" not in info["config"]
    assert info["uptime_s"] >= 0


def test_flush_cache(server: Serving) -> None:
    body = {"input_ids": list(range(500, 540)), "sampling_params": {"max_new_tokens": 1}}
    server.ok("/generate", body)
    for method in ("POST", "GET"):
        flushed = server.request(method, "/flush_cache").json()
        assert flushed["success"]
        assert (flushed["num_flushed_tokens"] >= 40) == (method == "POST")
    assert server.ok("/generate", body)["meta_info"]["cached_tokens"] == 0


def test_abort_all(server: Serving) -> None:
    assert server.ok("/abort_request", {"rid": "", "abort_all": True}) == {"num_aborted": 0}
    assert server.ok("/abort_request", {"rid": "unknown"}) == {"num_aborted": 0}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize("field", ["prompt", "text"])
def test_tokenize_text(server: Serving, path: str, field: str) -> None:
    text = "<|im_start|>user\nhello"
    ids = server.service.client.tokenizer.encode(text, allow_control=True, add_bos=True)
    found = server.ok(path, {field: text, "model": "default"})
    assert found == {"tokens": ids, "count": len(ids), "max_model_len": CONTEXT_LEN}
    both = server.ok(path, {field: [text, "a b"], "model": MODEL_NAME})
    assert (both["tokens"][0], both["count"]) == (ids, [len(ids), 2])


def test_tokenize_messages(server: Serving) -> None:
    messages = [{"role": "user", "content": "hello <|im_end|>"}]
    tokenizer = server.service.client.tokenizer
    found = server.ok("/tokenize", {"messages": messages})
    assert found["tokens"] == tokenizer.encode_chat(messages)
    without = server.ok("/tokenize", {"messages": messages, "add_generation_prompt": False})
    assert without["tokens"] == tokenizer.encode_chat(messages, add_generation_prompt=False)


def test_tokenize_pieces(server: Serving) -> None:
    pieces = [{"text": "<|im_start|>", "control": True}, {"text": "<|im_start|>"}]
    [control, *plain] = server.ok("/tokenize", {"pieces": pieces})["tokens"]
    tokenizer = server.service.client.tokenizer
    assert [control] == tokenizer.encode("<|im_start|>", allow_control=True)
    assert plain == tokenizer.encode("<|im_start|>")
    assert server.ok("/tokenize", {"pieces": []})["tokens"] == []


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
def test_detokenize(server: Serving, path: str) -> None:
    text = "<|im_start|>user\nhäagen 🦊"
    ids = server.service.client.tokenizer.encode(text, allow_control=True)
    assert server.ok(path, {"tokens": ids})["text"] == "user\nhäagen 🦊"
    assert server.ok(path, {"tokens": ids, "skip_special_tokens": False})["text"] == text
    assert server.ok(path, {"tokens": [ids, []]})["text"] == ["user\nhäagen 🦊", ""]
    assert server.ok(path, {"tokens": []})["text"] == ""


def test_role_markers(server: Serving) -> None:
    markers = server.service.client.tokenizer.role_markers(["system", "user"])
    found = server.ok("/role_markers", {"roles": ["system", "user"]})
    assert found == {"open": markers.open, "close": markers.close}


def test_not_found_and_not_allowed_have_the_same_shape(server: Serving) -> None:
    missing = server.get("/no/such/route")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, 404)
    wrong = server.get("/generate")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, 405)
    assert set(wrong.headers["allow"].split(", ")) == {"POST", "PUT"}


def test_nothing_is_documented_and_no_other_origin_let_in(server: Serving) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert server.get(path).status_code == 404
    answer = server.get("/health", headers={"origin": "http://elsewhere"})
    assert "access-control-allow-origin" not in answer.headers


def test_api_key() -> None:
    with serving(api_key="sésame") as server:
        for path in ("/health", "/ready"):
            assert server.get(path).status_code == 200
        for path in ("/", "/server_info", "/metrics", "/nowhere", "/health_generate"):
            assert server.get(path).status_code == 401
        for value in ("Bearer wrong", "Basic sésame", "sésame", "Bearer", "Bearer sésame2"):
            refused = server.get("/server_info", headers=[(b"authorization", value.encode())])
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        for value in ("Bearer sésame", "bearer  sésame"):
            info = server.get("/server_info", headers=[(b"authorization", value.encode())])
            assert info.status_code == 200
            assert "sésame" not in info.text


def test_a_snapshot_needs_somewhere_to_publish_it(server: Serving) -> None:
    response = server.post("/kv_events/snapshot", {})
    assert response.status_code == 400 and "--kv-events" in response.json()["error"]["message"]


def test_while_nothing_is_served() -> None:
    with serving(kv_events="ipc:///nowhere") as server:
        assert server.ok("/kv_events/snapshot", {}) == {"success": True}
        server.runtime.lose_a_process(1)
        alive = server.get("/health")
        assert alive.status_code == 200
        assert "the scheduler process ended" in alive.json()["status"]
        for path in ("/ready", "/model_info", "/server_info"):
            response = server.get(path)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert "the scheduler process ended" in response.json()["error"]["message"]
        for path, body in {
            "/generate": {"text": "a"},
            "/tokenize": {"prompt": "a"},
            "/flush_cache": {},
            "/kv_events/snapshot": {},
        }.items():
            assert server.post(path, body).status_code == 503
        metrics = server.get("/metrics")
        assert metrics.status_code == 200
        assert "espalier_num_running_reqs" not in metrics.text
        server.runtime.client.serve(1, server.runtime.limits)
        assert server.get("/ready").status_code == 200


def test_draining_is_healthy_but_not_ready() -> None:
    with serving() as server:

        async def drain_while_one_runs() -> tuple[int, int, int]:
            body = {"text": "a", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
            task = server.runner.get_loop().create_task(server.client.post("/generate", json=body))
            await when(lambda: server.service.client.num_open == 1)
            server.service.client.refuse("the runtime is shutting down")
            health = await server.client.get("/health")
            ready = await server.client.get("/ready")
            return health.status_code, ready.status_code, (await task).status_code

        assert server.runner.run(drain_while_one_runs()) == (200, 503, 200)
        assert server.get("/health").status_code == 200
