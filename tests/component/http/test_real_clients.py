"""Programs that people put in front of the gateway, or call it with: ab, curl, nginx, a browser, the vendors' SDKs."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anthropic
import openai
import pytest
from aiohttp import web

from pdx_api.names import Order
from pdx_api.settings.gateway import CORS
from tests.component.conftest import MakeWorld
from tests.component.harness import SHAPES, Shape, World
from tests.component.http.scripted import DONE, LAST, STREAM, TOKEN, Script, chunk, scripted
from tests.ports import free_port

SECONDS = 120.0
"""For a program to start and to do its work on a busy machine."""


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


async def _run(*argv: str) -> tuple[int, str]:
    """Exit code and output of a program."""
    process = await asyncio.create_subprocess_exec(
        _program(argv[0]), *argv[1:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace")


async def test_ab_with_keep_alive(make_world: MakeWorld, tmp_path: Path) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    body = tmp_path / "body"
    body.write_text(json.dumps(Shape().body()))
    url = f"{world.url}/v1/completions"
    code, out = await _run(
        "ab", "-k", "-s", "60", "-n", "20", "-c", "2", "-p", str(body), "-T", "application/json", url
    )
    assert code == 0, out
    found = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert (found["Complete requests"].strip(), found["Keep-Alive requests"].strip()) == ("20", "20"), out
    assert "Non-2xx responses" not in found
    world.sent = sum((await world.outcomes()).values())
    assert world.sent >= 20, "ab begins further ones before it stops"


async def test_curl_through_the_gateway_as_its_proxy(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    data = json.dumps(Shape().body())
    url = f"http://elsewhere.example:{world.gateway.listen.port}/v1/completions"
    code, out = await _run("curl", "-sS", "-x", world.url, "-H", "Content-Type: application/json", "-d", data, url)
    assert (code, json.loads(out)["choices"][0]["text"]) == (0, Shape().expected())
    world.sent += 1


async def test_curl_with_an_upgrade_and_a_redirect(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    data, url = json.dumps(Shape().body()), f"{world.url}/v1/completions/"
    code, out = await _run("curl", "-sSL", "--http2", "-H", "Content-Type: application/json", "-d", data, url)
    assert (code, json.loads(out)["choices"][0]["text"]) == (0, Shape().expected())
    world.sent += 1


_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {gateway}; {more} }} }}
}}
"""


@asynccontextmanager
async def _nginx(world: World, folder: Path, more: str) -> AsyncIterator[str]:
    """Start nginx in front of the gateway; yield its URL."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, gateway=world.url, more=more))
    process = await asyncio.create_subprocess_exec(_program("nginx"), "-p", str(folder), "-c", str(config))
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except ConnectionError:
                    assert process.returncode is None, (folder / "error.log").read_text()
                    await asyncio.sleep(0.05)
            writer.close()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("more", ["", 'proxy_http_version 1.1; proxy_set_header Connection "";'], ids=["1.0", "1.1"])
async def test_nginx_passes_on_each_event_as_it_comes(more: str, make_world: MakeWorld, tmp_path: Path) -> None:
    """With its default buffering. The engine waits with its second event until the client has the first one."""
    _program("nginx")
    world = await make_world(Order.PREFILL_FIRST, prefill=0, decode=0, gateway=False)
    script = Script(STREAM + chunk(TOKEN), then=chunk(DONE) + LAST)
    async with scripted(world, script) as engine, _nginx(world, tmp_path, more) as url:
        body = {"prompt": "a", "stream": True, "scripted": True}
        async with asyncio.timeout(SECONDS), world.session.post(f"{url}/v1/completions", json=body) as answer:
            assert await answer.content.readexactly(len(TOKEN)) == TOKEN
            assert "x-accel-buffering" not in answer.headers, "nginx keeps it for itself"
            engine.proceed.set()
            assert await answer.content.read() == DONE


_PAGE = """<script>
(async () => {
  const found = {};
  try {
    const headers = {"Content-Type": "application/json", "Authorization": "Bearer key", "X-Request-Id": "mine"};
    const answer = await fetch("GATEWAY/v1/completions", {method: "POST", headers, body: JSON.stringify(BODY)});
    found.id = answer.headers.get("x-request-id");
    found.text = await answer.text();
    found.models = (await (await fetch("GATEWAY/v1/models")).json()).data.length;
    found.missing = (await fetch("GATEWAY/nothing")).status;
  } catch (error) { found.error = String(error); }
  await fetch("/result", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_browser_fetches_from_another_origin(allowed: bool, make_world: MakeWorld, tmp_path: Path) -> None:
    """A page of another origin: with a preflight request, a stream, and errors that it may read."""
    program = _program("chromium")
    result: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
    page = ""

    async def send_page(_: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    async def receive(request: web.Request) -> web.Response:
        if not result.done():
            result.set_result(json.loads(await request.text()))
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/", send_page), web.post("/result", receive)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    world = await make_world(Order.PREFILL_FIRST, cors=CORS((origin,) if allowed else ("https://other.example",)))
    shape = Shape(stream=True)
    page = _PAGE.replace("GATEWAY", world.url).replace("BODY", json.dumps(shape.body()))
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    process = await asyncio.create_subprocess_exec(
        *(program, *flags, "--remote-debugging-port=0", f"--user-data-dir={tmp_path}", origin),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        found = await asyncio.wait_for(result, SECONDS)
    finally:
        os.killpg(process.pid, 9)
        await process.wait()
        await runner.cleanup()
    if not allowed:
        assert set(found) == {"error"}, "its preflight request is refused, and nothing else is sent"
        return
    assert "error" not in found, found
    events = [each.removeprefix("data: ") for each in str(found["text"]).split("\n\n") if each]
    assert "".join(json.loads(each)["choices"][0]["text"] for each in events[:-1]) == shape.expected()
    assert (found["id"], found["models"], found["missing"]) == ("mine", 1, 404)
    world.sent += 1


async def test_openai(order: Order, make_world: MakeWorld) -> None:
    """With a query in every request, as clients of Azure send it, on one connection."""
    world = await make_world(order)
    options = {"base_url": f"{world.url}/v1", "api_key": "none", "max_retries": 0}
    async with openai.AsyncOpenAI(default_query={"api-version": "1"}, **options) as client:  # type: ignore[arg-type]
        assert [model.id async for model in client.models.list()] == ["sim"]
        assert (await client.models.retrieve("sim")).id == "sim"
        for shape in SHAPES:
            body = shape.body()
            if shape.chat:
                chat = await client.chat.completions.create(**body)
                parts = [chat] if not shape.stream else [event async for event in chat]
                text = "".join(
                    (p.choices[0].delta if shape.stream else p.choices[0].message).content or "" for p in parts
                )
            else:
                done = await client.completions.create(**body)
                parts = [done] if not shape.stream else [event async for event in done]
                text = "".join(part.choices[0].text for part in parts)
            assert text == shape.expected()
    world.sent += len(SHAPES)
    assert await world.outcomes() == {"split": len(SHAPES)}


async def test_anthropic(make_world: MakeWorld) -> None:
    """The simulated engines of this test have no `/v1/messages`; real ones are in tests/engines."""
    world = await make_world(Order.PREFILL_FIRST)
    async with anthropic.AsyncAnthropic(base_url=world.url, api_key="none", max_retries=0) as client:
        assert (await client.models.retrieve("sim")).id == "sim"
