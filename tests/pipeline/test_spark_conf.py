"""The environment of a job: the connector, defaults that every setting of the user overrides, and a class archive."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.pipeline.spark_conf import CheckpointFiles, job_environment
from onceproof.stack.fetch import components, driver_archive
from onceproof.stack.spark_settings import Cluster, ExternalCluster

JARS = (Path("/a folder/k1.jar"), Path("/k2.jar"))

#: A job that loads the Kafka connector and prints its settings and class path.
PROBE = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for setting in sys.argv[1:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
jvm = spark._jvm
jvm.java.lang.Class.forName("org.apache.spark.sql.kafka010.KafkaSourceProvider")
wanted = ("spark.ui.enabled", "spark.local.dir", "spark.sql.warehouse.dir")
settings = {key: spark.conf.get(key) for key in wanted}
settings["class path"] = jvm.java.lang.System.getProperty("java.class.path")
print("SETTINGS" + json.dumps(settings))
spark.stop()
"""


def environment(users: dict[str, str], archive: Path | None = None, **more: Any) -> dict[str, str]:
    return job_environment(
        class_path=JARS,
        archive=archive,
        scratch=Path("/tmp/a 'run'"),
        passfile=None,
        failpoints=None,
        own=users,
        secrets=[],
        **more,
    )


def test_the_connector_comes_after_the_users_own_class_path() -> None:
    assert environment({})["SPARK_DIST_CLASSPATH"] == "/a folder/k1.jar:/k2.jar"
    assert environment({"SPARK_DIST_CLASSPATH": "/u/*"})["SPARK_DIST_CLASSPATH"] == "/u/*:/a folder/k1.jar:/k2.jar"


def test_the_users_jvm_options_come_last_because_the_last_one_counts() -> None:
    words = shlex.split(environment({"SPARK_SUBMIT_OPTS": "-Dspark.ui.enabled=true -Xss4m"})["SPARK_SUBMIT_OPTS"])
    assert words[-2:] == ["-Dspark.ui.enabled=true", "-Xss4m"]
    assert words.index("-Dspark.ui.enabled=false") < words.index("-Dspark.ui.enabled=true")


def test_a_path_with_spaces_and_quotes_stays_one_option() -> None:
    words = shlex.split(environment({}, archive=Path("/my cache/spark.jsa"))["SPARK_SUBMIT_OPTS"])
    assert "-XX:SharedArchiveFile=/my cache/spark.jsa" in words
    assert "-Dspark.local.dir=/tmp/a 'run'" in words
    assert "-Dspark.executor.extraClassPath=/a folder/k1.jar:/k2.jar" in words


def test_the_checkpoint_file_systems_jar_comes_last_and_the_users_own_manager_overrides_ours() -> None:
    files = CheckpointFiles(Path("/cache/c.jar"), "/tmp/a 'run'/socket")
    users = {"SPARK_SUBMIT_OPTS": f"-D{FILE_MANAGER}=users.Own"}
    env = environment(users, checkpoint=files)
    assert env["SPARK_DIST_CLASSPATH"] == "/a folder/k1.jar:/k2.jar:/cache/c.jar"
    words = shlex.split(env["SPARK_SUBMIT_OPTS"])
    assert "-Dspark.executor.extraClassPath=/a folder/k1.jar:/k2.jar:/cache/c.jar" in words
    assert "-Dspark.hadoop.onceproof.checkpoint.socket=/tmp/a 'run'/socket" in words
    managers = [word for word in words if word.startswith(f"-D{FILE_MANAGER}=")]
    assert managers == [f"-D{FILE_MANAGER}=onceproof.CheckpointFiles", f"-D{FILE_MANAGER}=users.Own"]
    assert FILE_MANAGER not in str(environment({}))


def test_the_cluster_is_the_jobs_default_master_and_its_secret_stays_in_a_file() -> None:
    cluster = Cluster("spark://127.0.0.1:7077", Path("/a 'run'/args"), 600, Path("/cache/spark.jsa"))
    users = {"PGPASSFILE": "/p", "DATABASE_URL": "x"}

    def of(more: dict[str, str]) -> dict[str, str]:
        return environment(users | more, cluster=cluster, events=Path("/e"))

    env = of({})
    assert env["MASTER"] == "spark://127.0.0.1:7077" and of({"MASTER": "local[4]"})["MASTER"] == "local[4]"
    words = shlex.split(env["SPARK_SUBMIT_OPTS"])
    assert "@/a 'run'/args" in words and "-Dspark.authenticate=true" in words
    assert "-Dspark.executorEnv.PGPASSFILE=/p" in words and "DATABASE_URL" not in env["SPARK_SUBMIT_OPTS"]
    assert not [word for word in words if "spark.executor.extraClassPath" in word], (
        "the cluster's workers have the jars"
    )
    assert "-Dspark.eventLog.dir=file:///e" in words
    assert "MASTER" not in environment({}) and "eventLog" not in str(environment({}))


def test_an_external_cluster_gets_the_jars_from_the_driver_which_listens_where_executors_reach_it(
    tmp_path: Path,
) -> None:
    env = job_environment(
        class_path=JARS,
        archive=None,
        scratch=tmp_path,
        passfile=Path("/p"),
        failpoints=None,
        own={},
        secrets=[],
        checkpoint=CheckpointFiles(Path("/cache/c.jar"), "10.0.0.7:4711", "not-for-all"),
        cluster=ExternalCluster("spark://h1:7077,h2:7077", "10.0.0.7"),
    )
    assert env["MASTER"] == "spark://h1:7077,h2:7077" and env["SPARK_LOCAL_IP"] == "10.0.0.7"
    words = shlex.split(env["SPARK_SUBMIT_OPTS"])
    assert {"-Dspark.driver.host=10.0.0.7", "-Dspark.driver.bindAddress=10.0.0.7"} <= set(words)
    assert "-Dspark.jars=file:///a%20folder/k1.jar,file:///k2.jar,file:///cache/c.jar" in words
    assert "-Dspark.hadoop.onceproof.checkpoint.socket=10.0.0.7:4711" in words and "not-for-all" not in str(env)
    (arguments,) = (Path(word[1:]) for word in words if word.startswith("@"))
    assert arguments.stat().st_mode & 0o777 == 0o600
    assert arguments.read_text() == "-Dspark.hadoop.onceproof.checkpoint.secret=not-for-all\n"
    assert "-Dspark.executorEnv.PGPASSFILE=/p" in words and "-Dspark.driver.host=127.0.0.1" not in words
    others = ("spark.authenticate", "spark.executor.memory", "spark.executor.extra")
    assert not [word for word in words if word.removeprefix("-D").startswith(others)], (
        "what the cluster's owner decides"
    )


def test_no_garbage_collector_is_set_because_with_two_the_jvm_does_not_start() -> None:
    words = shlex.split(environment({}, archive=Path("/spark.jsa"))["SPARK_SUBMIT_OPTS"])
    assert not [word for word in words if word.startswith("-XX:+Use")]


def test_a_secret_reaches_the_job_only_if_the_scenario_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    monkeypatch.setenv("OTHER_TOKEN", "t0ken")
    monkeypatch.setenv("SPARK_CONF_DIR", "/users/conf")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dof=shell")
    env = job_environment(
        class_path=JARS,
        archive=None,
        scratch=tmp_path,
        passfile=tmp_path / "p",
        failpoints=tmp_path / "f",
        own={"A": "b", "SPARK_SUBMIT_OPTS": "-Dof=scenario"},
        secrets=["API_TOKEN"],
    )
    assert env["API_TOKEN"] == "s3cret" and "OTHER_TOKEN" not in env
    assert env["PGPASSFILE"] == str(tmp_path / "p") and env["A"] == "b" and env["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert env["SPARK_CONF_DIR"] == "/users/conf"
    assert env["SPARK_SUBMIT_OPTS"].endswith(" -Dof=scenario") and "of=shell" not in env["SPARK_SUBMIT_OPTS"]


def test_a_class_archive_is_useless_with_a_users_conf_folder_or_another_spark_home(tmp_path: Path) -> None:
    assert not driver_archive.is_useless({})
    assert not driver_archive.is_useless({"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "spark-defaults.conf").touch()
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        assert driver_archive.is_useless({name: str(tmp_path)})
    assert driver_archive.is_useless({"SPARK_HOME": str(tmp_path)})


@pytest.fixture(scope="module")
def fetched() -> components.Components:
    return components.ensure(progress=False)


def start(
    fetched: components.Components, folder: Path, *settings: str, own: dict[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    """Run the probe in the environment of a job. Returns the settings that it printed, and the rest of its output."""
    scratch = folder / "a 'run'"
    scratch.mkdir()
    (folder / "probe.py").write_text(PROBE)
    assert fetched.checkpoint_jar is not None
    env = job_environment(
        class_path=fetched.spark_jars,
        archive=fetched.spark_archive,
        scratch=scratch,
        passfile=None,
        failpoints=folder / "none",
        own=own or {},
        secrets=[],
        checkpoint=CheckpointFiles(fetched.checkpoint_jar, str(folder / "none")),
    )
    argv = [sys.executable, str(folder / "probe.py"), *settings]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    (found,) = (line for line in lines if line.startswith("SETTINGS"))
    return json.loads(found.removeprefix("SETTINGS")), "\n".join(line for line in lines if line != found)


@pytest.mark.real
def test_a_driver_loads_spark_and_the_connector_from_the_archive(
    fetched: components.Components, tmp_path: Path
) -> None:
    assert fetched.spark_archive is not None
    loaded = tmp_path / "loaded"
    used, printed = start(fetched, tmp_path, own={"SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={loaded}"})
    lines = loaded.read_text().splitlines()
    for name in ("org.apache.spark.SparkContext ", "org.apache.spark.sql.kafka010.KafkaSourceProvider "):
        (source,) = (line for line in lines if name in line)
        assert source.endswith("source: shared objects file (top)")
    assert "[cds" not in printed
    assert used["spark.ui.enabled"] == "false" and used["spark.local.dir"] == str(tmp_path / "a 'run'")


@pytest.mark.real
@pytest.mark.parametrize(
    "how",
    ["builder", *(pytest.param(how, marks=pytest.mark.full) for how in ("conf folder", "arguments", "collector"))],
)
def test_the_users_settings_override_ours_and_an_unfit_archive_is_ignored(
    how: str, fetched: components.Components, tmp_path: Path
) -> None:
    own = tmp_path / "own.jar"
    os.link(fetched.spark_jars[0], own)
    settings = [f"spark.driver.extraClassPath={own}", f"spark.sql.warehouse.dir={tmp_path / how.split()[0]}"]
    conf = tmp_path / "conf"
    conf.mkdir()
    lower = f"spark.sql.warehouse.dir {tmp_path / 'lower'}\nspark.ui.enabled true\n"
    (conf / "spark-defaults.conf").write_text(lower if how != "conf folder" else "\n".join(settings).replace("=", " "))
    env = {"SPARK_CONF_DIR": str(conf)}
    if how == "arguments":
        env["PYSPARK_SUBMIT_ARGS"] = " ".join(f"--conf {setting}" for setting in settings) + " pyspark-shell"
    if how == "collector":
        settings.append("spark.driver.extraJavaOptions=-XX:+UseParallelGC")
    used, printed = start(fetched, tmp_path, *(settings if how in ("builder", "collector") else ()), own=env)
    assert used["spark.sql.warehouse.dir"] == f"file:{tmp_path / how.split()[0]}"
    assert used["spark.ui.enabled"] == ("false" if how == "conf folder" else "true")
    assert str(own) in used["class path"]
    assert all(str(jar) in used["class path"] for jar in (*fetched.spark_jars, fetched.checkpoint_jar))
    assert "[cds" not in printed
