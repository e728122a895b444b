"""The profile of an external stack: a table ``[stack.NAME]`` of ``onceproof.toml``.

Values may be ``${NAME}``, the value of an environment variable. A password must be one: the file may be committed.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator

from onceproof.base.errors import UsageError
from onceproof.base.masking import hide, hiding, masked
from onceproof.base.registry import suggest
from onceproof.scenario.base import Model
from onceproof.scenario.stack import SparkStack

FILE = "onceproof.toml"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_EXAMPLE = """for example:
  [stack.staging]
  provider = "external"
  chaos = "allowed"
  kafka = {bootstrap = "kafka-staging:9092"}
  postgres = {uri = "postgresql://tester@db-staging/test", password = "${STAGING_PG_PASSWORD}"}"""

_Text = TypeVar("_Text", str, SecretStr)
Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


def _addresses(text: str) -> str:
    for address in text.split(","):
        split_address(address.strip())
    return ",".join(address.strip() for address in text.split(","))


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[ipv6]:port`` as a pair. Raises `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        shown = "a URL" if "://" in address else repr(address)  # a URL may contain a password
        raise ValueError(f"{shown} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _one_line(value: _Text) -> _Text:
    """A client's properties file has one line for each setting."""
    text = value if isinstance(value, str) else value.get_secret_value()
    if len(text.splitlines()) > 1 or text != text.rstrip("\r\n"):
        raise ValueError("it has a line break: was it read from a file?")
    return value


class Sasl(Model):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: Annotated[str, AfterValidator(_one_line)]
    password: Annotated[SecretStr, AfterValidator(_one_line)]


class Tls(Model):
    """Files are PEM files; a relative path is relative to ``onceproof.toml``."""

    ca: Path | None = None
    """Certificates of the authorities to trust; None: those of this machine."""
    certificate: Path | None = None
    """The client's own certificate, if the server asks for one."""
    key: Path | None = None
    """The private key of ``certificate``, without a passphrase."""
    check_hostname: bool = True

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: give both or neither")
        return self


class KafkaProfile(Model):
    bootstrap: Annotated[str, AfterValidator(_addresses)]
    security: Security = "PLAINTEXT"
    sasl: Sasl | None = None
    job: Sasl | None = None
    """The job's own login, for ``{kafka.properties}``; None: the same as ``sasl``."""
    tls: Tls | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.job is not None and self.sasl is None:
            raise ValueError("job is a login, and sasl is missing: add sasl, the login of onceproof itself")
        if self.security.startswith("SASL") != (self.sasl is not None):
            fix = "add sasl = {mechanism, username, password}" if self.sasl is None else "remove sasl"
            raise ValueError(f"security is {self.security}: {fix}")
        if self.tls is not None and not self.encrypted:
            raise ValueError(f"security is {self.security}, which has no TLS: remove tls, or use SSL or SASL_SSL")
        return self

    @property
    def encrypted(self) -> bool:
        return self.security.endswith("SSL")

    def addresses(self) -> list[tuple[str, int]]:
        return [split_address(address) for address in self.bootstrap.split(",")]

    def login_settings(self, login: Sasl | None) -> dict[str, Any]:
        """librdkafka's settings for a client with this login, without those about TLS."""
        settings: dict[str, Any] = {"security.protocol": self.security}
        if login is not None:
            settings |= {
                "sasl.mechanism": login.mechanism,
                "sasl.username": login.username,
                "sasl.password": login.password.get_secret_value(),
            }
        return settings

    def client_settings(self) -> dict[str, Any]:
        """librdkafka's settings for a client that connects straight to the cluster, without ``bootstrap.servers``."""
        settings = self.login_settings(self.sasl)
        if self.encrypted:
            tls = self.tls or Tls()
            files = {
                "ssl.ca.location": tls.ca,
                "ssl.certificate.location": tls.certificate,
                "ssl.key.location": tls.key,
            }
            settings |= {name: str(path) for name, path in files.items() if path is not None}
            if not tls.check_hostname:
                settings["ssl.endpoint.identification.algorithm"] = "none"
        return settings


class PostgresProfile(Model):
    uri: str
    """libpq URI without a password: ``postgresql://user@host:port/database``."""
    password: SecretStr | None = None
    tls: Tls | None = None
    """Encrypt the connection, and check the server's certificate. None: no TLS."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        parts = self.parts()
        if lacking := [name for name in ("host", "user", "dbname") if not parts.get(name)]:
            raise ValueError(f"uri has no {' and no '.join(lacking)}: write postgresql://USER@HOST:PORT/DATABASE")
        if "," in parts["host"]:
            raise ValueError("uri names several hosts: name the primary alone")
        port = parts.get("port", "5432")
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(f"uri has the port {port!r}: write a whole number from 1 to 65535")
        if extra := parts.keys() - {"host", "port", "user", "dbname", "password"}:
            raise ValueError(f"uri has the option {sorted(extra)[0]!r}: remove it; tls is a key of its own here")
        return self

    def parts(self) -> dict[str, str]:
        """host, port, user, dbname and, if it is in the URI, password."""
        parts = _uri_parts(self.uri)
        if parts is None:  # libpq's message would quote the URI
            raise ValueError("uri is not a libpq URI: write postgresql://USER@HOST:PORT/DATABASE")
        return parts

    @property
    def secret(self) -> str:
        return self.password.get_secret_value() if self.password is not None else self.parts().get("password", "")


class StackProfile(Model):
    """Kafka and Postgres that you operate elsewhere, on which onceproof may create its own topics and tables and break connections."""

    controlled: ClassVar[frozenset[str]] = frozenset()
    """What faults may kill and stop there, in the words of `onceproof.faults.contract.NeedsControl`."""

    name: str
    provider: Literal["external"]
    chaos: Literal["allowed"]
    kafka: KafkaProfile
    postgres: PostgresProfile | None = None
    spark: SparkStack | None = None
    """The Spark cluster on which every scenario's job runs there; None: what the scenario says."""
    connect_s: Annotated[float, Field(ge=1, le=120)] = 10.0
    """How long a service may take to answer before it counts as unreachable, in seconds."""

    @model_validator(mode="after")
    def _own_master(self) -> Self:
        if self.spark is not None and not self.spark.external:
            raise ValueError('spark needs the address of your master: spark = {master = "spark://HOST:PORT"}')
        return self

    @property
    def place(self) -> str:
        """Where its addresses come from, for people."""
        return f"[stack.{self.name}] of {FILE}"

    def secrets(self) -> list[str]:
        """Texts that nothing may show or store."""
        logins = [login for login in (self.kafka.sasl, self.kafka.job) if login is not None]
        of_kafka = [login.password.get_secret_value() for login in logins]
        return [text for text in (*of_kafka, self.postgres.secret if self.postgres is not None else "") if text]


def load_profile(name: str, *, file: Path | None = None) -> StackProfile:
    """The profile ``[stack.NAME]`` of ``file``, or of the nearest ``onceproof.toml`` in this folder or above it.

    Its secrets are masked from now on (`onceproof.base.masking`). Raises `UsageError`, with the key and the fix.
    """
    path = file or _nearest()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:  # its message has line and column
        raise UsageError(f"{path}: not TOML: {broken}", hint=_EXAMPLE) from None
    except OSError as unreadable:
        raise UsageError(f"{path} cannot be read: {unreadable.strerror}", hint=_EXAMPLE) from None
    stacks = document.get("stack")
    if not isinstance(stacks, dict) or not isinstance(stacks.get(name), dict):
        known = sorted(stacks) if isinstance(stacks, dict) else []
        hint = suggest(name, known) if known else _EXAMPLE
        raise UsageError(f"{path}: there is no [stack.{name}]", hint=hint)
    where = f"{path}: [stack.{name}]"
    table = stacks[name]
    if table.get("chaos") != "allowed":
        said = f"chaos is {table['chaos']!r}" if "chaos" in table else "chaos is missing"
        raise UsageError(
            f"{where}: {said}: onceproof creates topics and tables there, and breaks the job's connections",
            hint='if nobody depends on what the job does there, write chaos = "allowed"',
        )
    _refuse_literal_secrets(table, where)
    substituted: list[str] = []
    filled = _filled(table, where, (), substituted)
    try:
        profile = StackProfile.model_validate({**filled, "name": name})
    except ValidationError as wrong:
        with hiding(substituted):  # any of them may be a secret under a mistyped key
            lines = _lines(wrong, where)
        raise UsageError("\n".join(lines), hint=_EXAMPLE) from None
    for secret in profile.secrets():
        hide(secret)
    return _with_files(profile, path.parent, where)


def _nearest() -> Path:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder / FILE
    raise UsageError(f"--stack needs a file {FILE}, and there is none in {here} or above it", hint=_EXAMPLE)


def _refuse_literal_secrets(table: dict[str, Any], where: str) -> None:
    """A password in the file itself would be committed with it."""
    kafka, postgres = table.get("kafka"), table.get("postgres")
    sasl, job = (kafka.get(key) if isinstance(kafka, dict) else None for key in ("sasl", "job"))
    owners = (("kafka.sasl.password", sasl), ("kafka.job.password", job), ("postgres.password", postgres))
    for key, owner in owners:
        value = owner.get("password") if isinstance(owner, dict) else None
        if isinstance(value, str) and not _VARIABLE.fullmatch(value):
            raise UsageError(
                f"{where}: {key} is written in the file itself",
                hint='put it into an environment variable and write password = "${NAME}"',
            )
    uri = postgres.get("uri") if isinstance(postgres, dict) else None
    if isinstance(uri, str) and (password := _password_in(uri)) and not _VARIABLE.fullmatch(password):
        raise UsageError(
            f"{where}: postgres.uri holds a password",
            hint='remove it from the URI and write password = "${NAME}", an environment variable',
        )


def _password_in(uri: str) -> str:
    # Not a URI: for example a whole URI in a variable.
    return (_uri_parts(uri) or {}).get("password", "")


def _uri_parts(uri: str) -> dict[str, str] | None:
    """The parts of a libpq URI; None if it is not one."""
    # It takes 0.4 s to load, and every command that reads a scenario imports this module.
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(uri).items()}
    except ProgrammingError:
        return None


def _filled(value: Any, where: str, keys: tuple[str, ...], substituted: list[str]) -> Any:
    """``value`` with every ``${NAME}`` replaced; what replaces them is added to ``substituted``."""
    if isinstance(value, dict):
        return {key: _filled(each, where, (*keys, key), substituted) for key, each in value.items()}
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        if not os.environ.get(found[1]):
            state = "empty" if found[1] in os.environ else "not set"
            raise UsageError(
                f"{where}: {'.'.join(keys)}: the environment variable {found[1]} is {state}",
                hint=f"run `export {found[1]}=...` first",
            )
        substituted.append(os.environ[found[1]])
        return os.environ[found[1]]

    return _VARIABLE.sub(variable, value)


def _lines(wrong: ValidationError, where: str) -> list[str]:
    """One line for each problem: the key and what is wrong, never the value of a secret.

    The value under an unknown key, or in the place of a table, may be a secret, and so may a text with a URL in it.
    """
    lines = []
    for each in wrong.errors(include_url=False, include_context=False):
        key = ".".join(map(str, each["loc"])) or "stack"
        message = each["msg"].removeprefix("Value error, ")
        value = each["input"]
        quoted = isinstance(value, str | int | float | bool) and not (
            each["type"] in ("extra_forbidden", "model_type")
            or each["loc"][-1:] in (("password",), ("uri",))
            or "://" in str(value)
        )
        lines.append(f"{where}: {key}: " + masked(message + (f", not {value!r}" if quoted else "")))
    return lines


def _with_files(profile: StackProfile, here: Path, where: str) -> StackProfile:
    """The profile with absolute paths. Raises `UsageError` for a file that does not exist."""
    kafka = profile.kafka.model_copy(update={"tls": _absolute(profile.kafka.tls, here, f"{where}: kafka.tls")})
    postgres = profile.postgres
    if postgres is not None:
        postgres = postgres.model_copy(update={"tls": _absolute(postgres.tls, here, f"{where}: postgres.tls")})
    return profile.model_copy(update={"kafka": kafka, "postgres": postgres})


def _absolute(tls: Tls | None, here: Path, where: str) -> Tls | None:
    if tls is None:
        return None
    paths = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    found = {key: (here / path.expanduser()).absolute() for key, path in paths.items() if path is not None}
    for key, path in found.items():
        if not path.is_file():
            raise UsageError(f"{where}.{key}: there is no file {path}", hint="give the path of a PEM file")
    return tls.model_copy(update=found)
