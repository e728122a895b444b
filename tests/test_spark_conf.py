"""The configuration folder and the environment that a job gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.spark_conf import job_environment, read_spark_defaults, write_spark_conf


def test_the_users_settings_win_and_lists_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "spark-defaults.conf").write_text(
        "# ours\nspark.driver.extraClassPath /a.jar\nspark.ui.enabled=true\nspark.executor.memory   2g\n"
    )
    (users / "log4j2.properties").write_text("rootLogger.level = warn\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(users))
    folder = write_spark_conf(tmp_path / "conf", [Path("/k1.jar"), Path("/k2.jar")], tmp_path)
    settings = read_spark_defaults((folder / "spark-defaults.conf").read_text())
    assert settings["spark.driver.extraClassPath"] == "/a.jar:/k1.jar:/k2.jar"
    assert settings["spark.executor.extraClassPath"] == "/k1.jar:/k2.jar"
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.executor.memory"] == "2g"
    assert (folder / "log4j2.properties").exists()
    assert (users / "spark-defaults.conf").read_text().count("k1.jar") == 0


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("spark.a b", ("spark.a", "b")),
        ("spark.a=b", ("spark.a", "b")),
        ("spark.a = b c", ("spark.a", "b c")),
        ("spark.a -Dx=y -Dz=w", ("spark.a", "-Dx=y -Dz=w")),
        ("spark.a=-Dx=y", ("spark.a", "-Dx=y")),
    ],
)
def test_both_ways_of_writing_a_default(line: str, pair: tuple[str, str]) -> None:
    assert read_spark_defaults(line) == dict([pair])


def test_a_secret_reaches_the_job_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    monkeypatch.setenv("OTHER_TOKEN", "t0ken")
    env = job_environment(
        spark_conf=tmp_path, passfile=tmp_path / "p", failpoints=tmp_path / "f", own={"A": "b"}, secrets=["API_TOKEN"]
    )
    assert env["API_TOKEN"] == "s3cret" and "OTHER_TOKEN" not in env
    assert env["PGPASSFILE"] == str(tmp_path / "p") and env["A"] == "b" and env["SPARK_LOCAL_IP"] == "127.0.0.1"
