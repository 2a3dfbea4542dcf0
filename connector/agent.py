"""The agent as a process: preconditions, lease, capture, graceful shutdown.

Startup probes the store and checks the source before it writes anything, and fails at once if it can't
succeed. The one exception: a server that writes no log is recorded as a gap as soon as it is seen, even if
the start then fails for another reason.

Every tenure begins the same way, no matter how long the agent waited or who was active before. It takes the
lease and reads its configuration. Then, while the lease is being renewed, it reads the newest manifest,
checks the source against it, and begins or resumes the history (`connector.capture.startup`). Nothing
observed before the lease was taken is relied on. The lease is released after the last commit. Losing it ends
capture at once, and an agent that has not noticed the loss still can't commit: the manifest is the fence.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager

from tenacity import Retrying, retry_if_exception_type, wait_fixed

from connector.capture.lease_keeper import LeaseKeeper, is_fenced
from connector.capture.loop import Capture
from connector.capture.manifest_history import ManifestHistory, check_identity
from connector.capture.retry import retrying
from connector.config import Config
from connector.control.live_agent import LiveAgent
from connector.control.server import serving
from connector.errors import (
    ConfigurationError,
    DeltatideError,
    FencedError,
    LogOffError,
    OperatorError,
    TransientError,
)
from connector.figures.progress import Progress
from connector.figures.source_load import LoadGauge, check_load
from connector.findings import never_dropped, require_fit
from connector.landing.lease import Lease, answer_seconds
from connector.landing.manifest import Manifest
from connector.landing.manifest_store import newest_manifest
from connector.listening import Listener, Probe, listening, login_seconds, silence_seconds
from connector.lost_sessions import LostSessions
from connector.masking.source import masked_source
from connector.signals import SignalEvent, reloaded_by_signal, stopped_by_signals, stops_postponed
from connector.silence import SILENCE_SECONDS, end_all
from connector.source import Finding, Source
from connector.store.factory import open_store, open_stores
from connector.store.observed import ObservedStore
from connector.store.probe import probe
from connector.store.protocol import Store

log = logging.getLogger(__name__)

HANDOVER_SECONDS = 5.0
"""How long an agent that handed over leaves the lease to others before it may take it back."""

STOP_SECONDS = 0.1
"""How often an agent that waits looks whether it was told to stop."""

RELOAD_SECONDS = 1.0
"""How often a standby whose configuration file is invalid reads it again."""


class InvalidFileError(ConfigurationError):
    """the configuration file was invalid when a standby was about to take over."""


def open_source(config: Config) -> Source:
    """Open the configured source, masked as configured. Connects only on first use."""
    if config.source.kind == "postgres":
        from connector.postgres.source import PostgresSource

        return masked_source(PostgresSource(config.source, config.tables), config)
    from connector.mysql.source import MysqlSource

    return masked_source(MysqlSource(config.source, config.tables), config)


def open_gauge(config: Config) -> LoadGauge:
    """Open the load gauge of the configured source, which has its own connection."""
    if config.source.kind == "postgres":
        from connector.postgres.load_gauge import PostgresGauge

        return PostgresGauge(config.source)
    from connector.mysql.load.gauge import MysqlGauge

    return MysqlGauge(config.source, [url.get_secret_value() for url in config.limits.replicas])


def open_probe(config: Config) -> Probe:
    """Open a probe of the configured source, which has its own connection."""
    url, name = config.source.url.get_secret_value(), _name_of(config)
    if config.source.kind == "postgres":
        from connector.postgres import connection as postgres

        return postgres.probe(url, name)
    from connector.mysql import server as mysql

    return mysql.probe(url, name)


def _name_of(config: Config) -> str:
    """Return the name that all connections to the source bear."""
    return f"deltatide {config.source.name}"


def _listen(
    config: Config,
    seconds: float,
    signs: Callable[[], object] = lambda: None,
    *,
    first_seconds: float = 0.0,
    login_seconds: float = 0.0,
) -> AbstractContextManager[Listener]:
    """Listen for the source; once it is silent, end all connections to it, and meanwhile those lost alone."""
    name, probe = _name_of(config), open_probe(config)
    look = LostSessions(name, probe, seconds).look
    limits = {"first_seconds": first_seconds, "login_seconds": login_seconds}
    return listening(probe, lambda: end_all(name), seconds, signs, **limits, look=look)


def check(config: Config) -> list[Finding]:
    """Check every precondition of source and landing zone, and return all findings. Leaves nothing behind."""
    store = open_store(config.landing, config.source.name, patient=False)
    try:
        landing_zone = _check_landing(store)
    except TransientError as error:
        landing_zone = Finding("landing zone", "failed", str(error), error.hint)
    newest = functools.partial(newest_manifest, store) if landing_zone.state != "failed" else None
    try:
        findings = [landing_zone, *_check_source(config, newest)]
    except TransientError as error:
        return [landing_zone, Finding("source", "failed", str(error), error.hint)]
    if any(found.name == "source" for found in findings):
        return findings
    with _listen(config, SILENCE_SECONDS):
        return [*findings, *check_load(functools.partial(open_gauge, config), config.dump.workers)]


def _check_source(
    config: Config,
    newest: Callable[[], Manifest | None] | None,
    on_log_off: Callable[[Source, str], None] | None = None,
) -> list[Finding]:
    """Check the source and, if `newest` can be read, that the landing zone belongs to it.

    If the server writes no log, `on_log_off` is called first, since nothing shows that later. A configured
    table that is missing counts as dropped if anything has landed; otherwise its name is wrong.
    `TransientError` if the source or the landing zone does not answer.
    """
    findings: list[Finding] = []
    source = open_source(config)
    try:
        with _listen(config, SILENCE_SECONDS):
            findings += _check_logging(source, on_log_off)
            findings += source.check()
            landed = newest() if newest is not None else None
            if landed is None:
                findings = never_dropped(findings)
            if newest is not None:
                findings.append(_check_identity(landed, source))
    except TransientError:
        raise
    except DeltatideError as error:
        findings.append(Finding("source", "failed", str(error), error.hint))
    finally:
        source.close()
    return findings


def _check_logging(source: Source, on_log_off: Callable[[Source, str], None] | None) -> list[Finding]:
    try:
        source.ensure_logging()
    except LogOffError as error:
        if on_log_off is not None:
            on_log_off(source, error.gap)
        return [Finding("log", "failed", str(error), error.hint)]
    return []


def _check_landing(store: Store) -> Finding:
    """Probe the store; `TransientError` if it does not answer."""
    try:
        probe(store)
    except OperatorError as error:
        return Finding("landing zone", "failed", str(error), error.hint)
    return Finding("landing zone", "ok", f"{store.url} is writable and honors conditional creates")


def _check_identity(newest: Manifest | None, source: Source) -> Finding:
    if newest is None:
        return Finding("history", "ok", "a new one begins")
    try:
        check_identity(newest.source, source.identity(newest))
    except OperatorError as error:
        return Finding("history", "failed", str(error), error.hint)
    return Finding("history", "ok", f"resumes after manifest {newest.number}")


def run(
    config: Config,
    load_config: Callable[[], Config] | None = None,
    *,
    standby: bool = False,
    stopped: threading.Event | None = None,
) -> Progress:
    """Run the agent until SIGTERM or Ctrl-C (graceful), or until an error stops it (raised).

    On becoming active, and at SIGHUP, it applies the configuration that `load_config` returns
    (`Config.reloaded`). It waits for a store or database that does not answer, at startup too. Its HTTP side
    answers throughout.

    A `standby` waits while another agent is active. It returns to standby when asked to hand over, when
    another agent has taken over, or when another could do better (`connector.capture.lease_keeper`).

    `stopped`: set once the caller has been told to stop. A signal handler that raises is not enough: what it
    raises is lost if a C extension imports a module just then and drops the errors of that.
    """
    seconds = answer_seconds(config.landing.lease_seconds)
    patient, hurried = open_stores(config.landing, config.source.name, seconds)
    store = ObservedStore(patient)
    lease_store = ObservedStore(hurried, counted_by=store)
    live = LiveAgent(config, store)
    with serving(live):
        return _Agent(live, store, lease_store, load_config, standby, stopped or SignalEvent()).run()


@dataclasses.dataclass
class _Agent:
    """The tenures of this process, one after the other, until it is stopped.

    `lease_store`: the same store for the lease, where a request that hangs is given up while the lease holds.
    `term`: the last tenure's term; 0: none. The next tenure begins with the configuration that the last one
    ended with (`LiveAgent.stand_by`). `first_seconds`: for the source's first answer, if the last tenure's
    came late or never: a login that takes longer than silence may would end each one. `capture`: this
    tenure's, which a signal stops.
    """

    live: LiveAgent
    store: ObservedStore
    lease_store: ObservedStore
    load_config: Callable[[], Config] | None
    standby: bool
    stopped: threading.Event
    term: int = 0
    first_seconds: float = 0.0
    capture: Capture | None = None

    def run(self) -> Progress:
        while True:
            try:
                capture = self._serve()
            except FencedError as error:
                if not self.standby or self.stopped.is_set():
                    raise
                log.warning("%s; standing by", error)
            except InvalidFileError as error:
                if not self.standby or self.load_config is None:
                    raise
                log.error("can't take over before the configuration file is valid: %s", error)
                self._wait_until_valid(self.load_config)
            else:
                if self.stopped.is_set() or not capture.handed_over:
                    return capture.progress
            self.live.stand_by()

    def _serve(self) -> Capture:
        """Check, wait for the lease, and capture until it is lost or handed over, or the agent is stopped."""
        _require_fit(self.live.config, self.store, self._pause, self._record_log_off)
        self.live.stand_by()
        self._pause(0)
        taken: list[Lease] = []
        with stopped_by_signals(self._stop):  # which ends nothing at once: the lease may be taken just then
            try:
                lease = self._acquire_lease(taken, standby=self.standby)
                capture = self._hold(lease)
            finally:
                with stops_postponed():
                    ended, self.capture = self.capture, None
                    in_doubt = ended is not None and ended.in_doubt
                    for lease in taken[-1:]:
                        lease.release(fenced=is_fenced(ended, lease), unreachable=in_doubt)
        if capture.handed_over and not self.stopped.is_set():
            self.live.stand_by()
            log.info("handed over; standing by")
            lease.wait_until_taken(HANDOVER_SECONDS)
        return capture

    def _acquire_lease(self, taken: list[Lease], *, standby: bool = False) -> Lease:
        """Wait for the lease, and for a store that does not answer.

        `taken`: gets the lease before it is written, since a second signal ends this at once.
        """
        seconds, patiently = self.live.config.landing.lease_seconds, retrying(threading.Event())
        acquire = functools.partial(
            Lease.acquire, holder=uuid.uuid4().hex, standby=standby, taking=taken.append, sleep=self._pause
        )
        return patiently.copy(sleep=self._pause)(acquire, self.lease_store, seconds, log.info)

    def _record_log_off(self, source: Source, reason: str) -> None:
        """Record the gap of a server that writes no log, if anything has landed; durable on return.

        Once the lease is taken, a stop takes effect after that. Does nothing while another agent is active,
        which will see it too. `SourceMismatchError` if the landing zone is another database's.
        """
        if retrying(threading.Event())(newest_manifest, self.store) is None:
            return
        taken: list[Lease] = []
        manifest_history: ManifestHistory | None = None
        with stopped_by_signals(self._stop):
            try:
                lease = self._acquire_lease(taken)
                manifest_history = ManifestHistory(
                    self.store, lease.term, self.stopped, closes_fence=lease.unfenced
                )
                manifest_history.load(lambda landed: landed.source)
                manifest_history.note_log_off(source.identity, reason)
            except FencedError as error:
                if manifest_history is not None:
                    raise
                log.warning("%s, and %s", reason, error)
            finally:
                with stops_postponed():
                    in_doubt = manifest_history is not None and manifest_history.in_doubt
                    for lease in taken[-1:]:
                        lease.release(unreachable=in_doubt)
        self._pause(0)

    def _hold(self, lease: Lease) -> Capture:
        """Capture while the lease is ours."""
        self._pause(0)
        config = self._config_as_of_now(lease.term)
        self.term = lease.term
        source = open_source(config)
        try:
            capture = self.capture = Capture(
                source,
                self.store,
                config,
                term=lease.term,
                closes_fence=lease.unfenced,
                open_gauge=functools.partial(open_gauge, config),
                load_config=self.load_config,
                hands_over=self.standby,
            )
            self.live.activate(capture, lease)
            seconds = config.landing.lease_seconds
            silence = silence_seconds(seconds, standbys=self.standby)
            login = login_seconds(seconds, standbys=self.standby)
            with (
                reloaded_by_signal(capture.reload),
                _listen(
                    config,
                    silence,
                    lambda: capture.progress.arrivals,
                    first_seconds=self.first_seconds,
                    login_seconds=login,
                ) as listener,
                LeaseKeeper(lease, capture, listener).running(),
            ):
                try:
                    self._pause(0)
                    capture.run()
                finally:
                    if listener.late is not None:
                        self.first_seconds = SILENCE_SECONDS if listener.late else 0.0
            return capture
        finally:
            source.close()

    def _pause(self, seconds: float) -> None:
        """Wait, and exit if we were told to stop.

        Does not wait for the event: the signal handler that sets it interrupts this thread, which may hold
        the event's lock then.
        """
        until = time.monotonic() + seconds
        while not self.stopped.is_set() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, STOP_SECONDS))
        if self.stopped.is_set():
            sys.exit(0)

    def _stop(self, number: signal.Signals) -> None:
        self.stopped.set()
        if self.capture is not None:
            log.info("%s: landing and committing what was read", number.name)
            self.capture.stop()

    def _config_as_of_now(self, term: int) -> Config:
        """Return the configuration that an agent running all along would have applied by now.

        If the file is invalid now, that is the one our last tenure ended with, provided no other tenure came
        in between. Otherwise raises `InvalidFileError`: another agent may have stopped capturing tables
        that our copy still names, or masked what it still shows.
        """
        config = self.live.config
        if self.load_config is None:
            return config
        try:
            return config.reloaded(self.load_config())[0]
        except ConfigurationError as error:
            if term > self.term + 1:
                raise InvalidFileError(str(error), hint=error.hint) from error
            log.error("keeping the configuration as it was: %s", error)
            return config

    def _wait_until_valid(self, load_config: Callable[[], Config]) -> None:
        """Leave the lease to others until the configuration file is valid."""
        self.live.stand_by()
        invalid = retry_if_exception_type(ConfigurationError)
        for attempt in Retrying(retry=invalid, wait=wait_fixed(RELOAD_SECONDS), sleep=self._pause):
            with attempt:
                self.live.config.reloaded(load_config())
        log.info("the configuration file is valid again")


def _require_fit(
    config: Config,
    store: Store,
    sleep: Callable[[float], None],
    record_log_off: Callable[[Source, str], None],
) -> None:
    """Check store and source, waiting for those that do not answer; `PreconditionError` if they are unfit."""
    patiently = retrying(threading.Event()).copy(sleep=sleep)
    landing_zone = patiently(_check_landing, store)
    can_land = landing_zone.state != "failed"
    newest = functools.partial(patiently, newest_manifest, store) if can_land else None
    asking_source = retrying(threading.Event(), "the source").copy(sleep=sleep)
    record = record_log_off if can_land else None
    findings = [landing_zone, *asking_source(_check_source, config, newest, record)]
    for finding in findings:
        if finding.state == "warning" or finding.dropped:
            log.warning("%s: %s", finding.name, finding.detail)
    require_fit(findings)
