"""Builds the driver of the Java clients with Maven, once for as long as its sources stay the same."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "java"
TARGET: Final = SOURCES / "target"
# Another release of the clients than the one that the project names, to see whether it works as well.
VERSION_VARIABLE: Final = "PULSAR_CLIENT_VERSION"
OLDEST_JAVA: Final = 17
# A first build downloads a hundred files.
BUILD_LIMIT: Final = 600.0


class JavaMissing(Exception):
    """Java, Maven or something that Maven should have fetched is not there, so that nothing can be tested with it."""


def class_path() -> str:
    """What `java -cp` needs to run the driver."""
    java, maven = _tools()
    TARGET.mkdir(exist_ok=True)
    # Several test processes may want it at the same time; one builds.
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built, path = TARGET / "built", TARGET / "classpath"
        wanted = _fingerprint(java)
        if not (built.exists() and built.read_text() == wanted and _complete(path)):
            built.unlink(missing_ok=True)
            _build(maven, path)
            built.write_text(wanted)
        return f"{TARGET / 'classes'}{os.pathsep}{path.read_text().strip()}"


def _tools() -> tuple[str, str]:
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        raise JavaMissing(f"no `{'java' if java is None else 'mvn'}` on the PATH")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise JavaMissing(f"Java {OLDEST_JAVA} is needed, but `java -version` says {said.splitlines()[:1]}")
    return java, maven


def _build(maven: str, path: Path) -> None:
    command = [maven, "-q", "-B", "compiler:compile", "dependency:build-classpath", f"-Dmdep.outputFile={path}"]
    if version := os.environ.get(VERSION_VARIABLE):
        command.append(f"-Dpulsar.version={version}")
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_LIMIT)
    if done.returncode == 0:
        return
    complaints = [line.removeprefix("[ERROR]").strip() for line in done.stdout.splitlines() if "[ERROR]" in line]
    if any("COMPILATION ERROR" in line for line in complaints):
        raise AssertionError("the driver does not compile:\n" + "\n".join(complaints))
    raise JavaMissing(f"Maven failed: {next(filter(None, complaints), done.stderr.strip())}")


def _fingerprint(java: str) -> str:
    digest = hashlib.sha256(f"{java} {os.environ.get(VERSION_VARIABLE)}".encode())
    for source in sorted([SOURCES / "pom.xml", *SOURCES.glob("src/**/*.java")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _complete(path: Path) -> bool:
    return path.exists() and all(Path(part).exists() for part in path.read_text().strip().split(os.pathsep))
