"""The distribution: generic package names are ours alone in this environment, and data files come along."""

import tomllib
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path

from metadata import scripts

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_no_other_distribution_owns_one_of_our_package_names() -> None:
    owners = packages_distributions()
    for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        # An editable install lists no files, so that we may be missing here, but nobody else may be present.
        assert set(owners.get(name, [])) <= {"vela"}, name


def test_every_dependency_is_pinned() -> None:
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"], *PROJECT["build-system"]["requires"]]
    assert {name.split("[")[0].lower() for name in wanted} <= pinned


def test_scripts_are_found_as_package_data() -> None:
    sources = [entry.name for entry in files("metadata.scripts").iterdir() if entry.name.endswith(".lua")]
    assert len(sources) == len(scripts.ALL)
