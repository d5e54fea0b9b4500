"""The servers and processes of an installation, with their commands."""

from __future__ import annotations

import http.client
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

from poisonweb.embedded import postgres, redis
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.free_ports import LOOPBACK, free_port
from poisonweb.embedded.process_control import Program
from poisonweb.embedded.running_servers_file import LOOPBACK_BROKERS, Servers
from poisonweb.env import Env
from poisonweb.sample import stock_quote_tcp_port

# A task works for at most ten seconds, so a worker stops within this time.
WORKER_GRACE = 15.0
# The gateway waits for back ends for five, and then stores what they did not answer.
GATEWAY_GRACE = 15.0
CONSUMER_GRACE = 5.0
# A sender lets its calls end for 12 seconds, and records what they gave.
SENDER_GRACE = 20.0
# A sweeper marks what it has sent within 12 seconds.
SWEEPER_GRACE = 20.0
# Pages do not wait for these processes, so they run at a lower priority.
LOW_PRIORITY = ("nice", "-n", "5")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    servers: tuple[Program, ...]
    addresses: Servers
    prepare: Program
    processes: tuple[Program, ...]


def temporary(var: Path) -> Path:
    """Return the folder of temporary files; each start and stop empties it."""
    return var / "tmp"


def make(
    env: Env,
    *,
    port: int,
    gateway_port: int | None = None,
    environ: Mapping[str, str],
) -> Plan:
    """Plan embedded servers for those missing in the environment, and all processes.

    The usual port of the gateway is the one above the port of the web.
    """
    servers: list[Program] = []
    database_url, shop_url = env.database_url, None
    if database_url is None:
        database_url, shop_url = _add_postgres(env.var / "postgres", servers)
    celery_broker_url, redis_url = env.celery_broker_url, env.redis_url
    if celery_broker_url is None:
        celery_broker_url, ours = _add_redis(env.var / "redis", servers)
        redis_url = redis_url or ours
    addresses = Servers(
        database_url=database_url,
        celery_broker_url=celery_broker_url,
        redis_url=redis_url,
        shop_url=shop_url,
    )
    demo = _demo(env, addresses, is_requested=bool(environ.get("POISONWEB_DEMO")))
    quote_port = stock_quote_tcp_port.choose(env.var) if demo else None
    environment = {
        **LOOPBACK_BROKERS,
        **environ,
        **addresses.environment(),
        "POISONWEB_VAR": str(env.var),
        # A worker that gets SIGQUIT leaves its temporary files: we remove this folder.
        "TMPDIR": str(temporary(env.var)),
        "POISONWEB_DEMO": "1" if demo else "0",
        "POISONWEB_ENDPOINT_HOSTS": _endpoint_hosts(env, quote_port),
        "PYTHONUNBUFFERED": "1",
    }
    return Plan(
        servers=tuple(servers),
        addresses=addresses,
        prepare=Program(
            name="prepare",
            command=_python("manage.py", "prepare"),
            environment=environment,
        ),
        processes=_processes(
            env,
            port=port,
            gateway_port=gateway_port or port + 1,
            quote_port=quote_port,
            environment=environment,
        ),
    )


def _add_postgres(folder: Path, servers: list[Program]) -> tuple[str, str]:
    """Prepare an embedded Postgres, and add it to the servers to start.

    Return the URLs of our database and of that of the sample's shop.
    """
    # This takes seconds, in which another program could take a free port.
    postgres.prepare(folder)
    port = free_port()
    servers.append(postgres.program(folder, port=port))
    shop = postgres.url(folder, port=port, database=postgres.SHOP)
    return postgres.url(folder, port=port), f"{shop}?sslmode=disable"


def _add_redis(folder: Path, servers: list[Program]) -> tuple[str, str]:
    """Add an embedded Redis to the servers to start; return its two URLs.

    The first is for Celery, the second for the sample.
    """
    port = free_port()
    servers.append(redis.program(folder, port=port))
    for_celery = redis.url(folder, port=port, database=redis.CELERY_DATABASE)
    return for_celery, redis.url(folder, port=port, database=redis.SAMPLE_DATABASE)


def _demo(env: Env, addresses: Servers, *, is_requested: bool) -> bool:
    """Decide whether the sample runs; unasked, only with embedded servers.

    Raises CannotStart if it is asked for, but no Redis is there for it.
    """
    if not is_requested:
        return env.database_url is None and addresses.redis_url is not None
    if env.demo and addresses.redis_url is None:
        raise CannotStart(
            "POISONWEB_DEMO=1 with your own CELERY_BROKER_URL also needs "
            "POISONWEB_REDIS_URL, the sample's message broker."
        )
    return env.demo


def _processes(
    env: Env,
    *,
    port: int,
    gateway_port: int,
    quote_port: int | None,
    environment: Mapping[str, str],
) -> tuple[Program, ...]:
    """List the programs of `make run`; with a port for quotes, the sample's, too."""
    program = partial(Program, environment=environment)
    worker = partial(_worker, env.log_level)
    schedule = ("--schedule", str(env.var / "run" / "beat-schedule"))
    ours = (
        program(name="web", command=_web(port), ready=partial(_is_ready, port)),
        program(
            name="worker",
            command=worker("poisonweb", size=2),
            grace=WORKER_GRACE,
        ),
        program(name="beat", command=_celery(env.log_level, "beat", *schedule)),
        program(name="lanes", command=_python("manage.py", "lanes")),
        program(
            name="gateway",
            command=_python("manage.py", "gateway", "--port", str(gateway_port)),
            grace=GATEWAY_GRACE,
        ),
        program(
            name="sender",
            command=_python("manage.py", "sender"),
            grace=SENDER_GRACE,
        ),
        program(
            name="sweeper",
            command=_python("manage.py", "sweeper"),
            grace=SWEEPER_GRACE,
        ),
        program(
            name="reports",
            command=worker("reports", size=1),
            # A report may take minutes: an interrupted one is made again later.
            stop_signal=signal.SIGQUIT,
            wrapper=LOW_PRIORITY,
        ),
    )
    if quote_port is None:
        return ours
    ports = ("--quote-port", str(quote_port), "--gateway-port", str(gateway_port))
    return (*ours, *_sample_programs(env, environment, ports))


def _endpoint_hosts(env: Env, quote_port: int | None) -> str:
    """Return the hosts that endpoints may call, the sample's included."""
    of_sample = [] if quote_port is None else [f"{LOOPBACK}:{quote_port}"]
    return ",".join([*env.endpoint_hosts, *of_sample])


def _sample_programs(
    env: Env, environment: Mapping[str, str], ports: tuple[str, ...]
) -> tuple[Program, ...]:
    """List the sample's programs to run, with the one that writes its history."""
    journal = {"POISONGUARD_JOURNAL": str(env.var / "sample-journal")}
    program = partial(Program, environment={**environment, **journal})
    return (
        program(name="sample", command=_python("-m", "poisonweb.sample", *ports)),
        program(
            name="shipping",
            command=_guarded(_python("-m", "poisonweb.sample.shipping")),
        ),
        program(
            name="history",
            command=_python("manage.py", "make_history"),
            wrapper=LOW_PRIORITY,
            once=True,
        ),
    )


def _guarded(command: tuple[str, ...]) -> tuple[str, ...]:
    """Wrap the sample's consumer in `poisonguard run`; both processes end together."""
    ends_with_it = ("setpriv", "--pdeathsig", "TERM", "--")
    run = _python("-m", "poisonguard", "run", "--grace", str(CONSUMER_GRACE), "--")
    return (*run, *ends_with_it, *command)


def _web(port: int) -> tuple[str, ...]:
    """Return the command that runs the web server of the pages and the API."""
    return _python("-m", "poisonweb.web", "--host", LOOPBACK, "--port", str(port))


def _worker(level: str, queue: str, *, size: int) -> tuple[str, ...]:
    """Return the command of a Celery worker of one queue."""
    return _celery(
        *(level, "worker", "--queues", queue, "--hostname", f"{queue}@%h"),
        *("--concurrency", str(size)),
        # No other worker has this queue, and looking for others would take a second.
        *("--without-gossip", "--without-mingle"),
    )


def _celery(level: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of Celery with these arguments."""
    return _python("-m", "celery", "-A", "poisonweb", *arguments, "--loglevel", level)


def _python(*arguments: str) -> tuple[str, ...]:
    """Return the command that runs this Python with these arguments."""
    return (sys.executable, *arguments)


def _is_ready(port: int, _: int) -> bool:
    """Check whether the web server at this port answers that it is ready."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
