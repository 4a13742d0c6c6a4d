"""`dats-rag owners`: a file of users and tags becomes the ledger's, or says which line of it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dats_common.errors import InvalidInput
from services.cli.commands import app
from services.cli.owners import read_owners

GOOD = """\
users:
  - user_id: ada
    email: ada@example.org
    name: Ada
  - {user_id: ben, email: ben@example.org}
tags:
  - name: billing
    owner_user_id: ada
    description: Invoices and what becomes of them
  - name: nobody's
"""
LISTED = {
    "tenant_id": "default",
    "tags": [
        {
            "name": "billing",
            "owner_user_id": "ada",
            "email": "ada@example.org",
            "description": "Invoices and what becomes of them",
        },
        {"name": "nobody's", "owner_user_id": None, "email": None, "description": ""},
    ],
    "users": [
        {"user_id": "ada", "email": "ada@example.org", "name": "Ada"},
        {"user_id": "ben", "email": "ben@example.org", "name": ""},
    ],
}


class Directory:
    """A data directory, and commands on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str, stdin: str | None = None) -> tuple[int, Any]:
        """Exit status and the JSON that it printed. Raises: what the command line tells its user."""
        asked = ["owners", *arguments, "--json", "--data", str(self.path)]
        ended = CliRunner().invoke(app, asked, input=stdin)
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return ended.exit_code, json.loads(ended.stdout)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "data")


def test_owners_are_imported_listed_and_removed(directory: Directory, tmp_path: Path) -> None:
    file = tmp_path / "owners.yaml"
    file.write_text(GOOD, encoding="utf-8")
    assert directory.run("import", str(file)) == (0, {"tenant_id": "default", "users": 2, "tags": 2})
    assert directory.run("list") == (0, LISTED)
    assert directory.run("remove-user", "ada") == (0, {"removed": True})
    assert directory.run("remove-user", "ada") == (1, {"removed": False})
    assert directory.run("remove-tag", "nobody's") == (0, {"removed": True})
    assert directory.run("remove-tag", "nobody's") == (1, {"removed": False})
    _, left = directory.run("list")
    assert [(tag["name"], tag["owner_user_id"], tag["email"]) for tag in left["tags"]] == [("billing", "ada", None)]
    assert [user["user_id"] for user in left["users"]] == ["ben"]


def test_json_from_stdin_does_as_well_and_tenants_are_kept_apart(directory: Directory) -> None:
    document = json.dumps({"users": [{"user_id": "ünal 😀", "email": "u@example.org"}]}, indent="\t")
    assert directory.run("import", "-", "--tenant", "acme", stdin=document)[0] == 0
    assert [user["user_id"] for user in directory.run("list", "--tenant", "acme")[1]["users"]] == ["ünal 😀"]
    assert directory.run("list")[1]["users"] == []


def test_a_tag_of_an_unknown_owner_imports_nothing(directory: Directory) -> None:
    document = "users: [{user_id: ada, email: a@example.org}]\ntags: [{name: red, owner_user_id: eve}]\n"
    with pytest.raises(InvalidInput, match="tag 'red': there is no user 'eve'"):
        directory.run("import", "-", stdin=document)
    assert directory.run("list")[1]["users"] == []


def test_a_tenant_that_is_no_name_is_refused(directory: Directory) -> None:
    with pytest.raises(InvalidInput, match="--tenant: must not be blank"):
        directory.run("list", "--tenant", " ")


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("users:\n  - user_id: ada\n    email: nobody\n", "line 3: users[0].email: an e-mail address is needed"),
        ("users:\n  - user_id: ada\n    email: a b@c\n", "line 3: users[0].email: an e-mail address is needed"),
        ("users:\n  - user_id: 7\n    email: a@b\n", "line 2: users[0].user_id: Input should be a valid string"),
        ("users:\n  - user_id: ada\n", "line 2: users[0].email: is required"),
        ("tags:\n  - name: red\n    owner: ada\n", "line 3: tags[0].owner: is not a known field"),
        ("tags:\n  - name: red\n  - name: red\n", "line 3: tags[1].name: red stands twice"),
        ("tags:\n  - name: red\n    name: blue\n", "line 3: name: stands twice in one place"),
        ("tags: []\nusers: []\ntags: []\n", "line 3: tags: stands twice in one place"),
        ("tags: red\n", "line 1: tags: Input should be a valid list"),
        ("users:\n  - user_id: [\n", "not YAML at line 3"),
        ("tags:\n  - name: 2026-13-45\n", "not YAML: month must be in 1..12"),
        ("- red\n", "lists are needed under `users:`"),
        ("", "lists are needed under `users:`"),
        ('{"users": [{"user_id": "ada", "email": 3}]}', "users[0].email: Input should be a valid string"),
        ('{"users": [],\n "users": []}', "an object has the same key twice"),
        ('{"users": [],\n}', "line 2 column 1"),
    ],
)
def test_a_flaw_is_told_with_its_line_and_field(document: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_owners(document.encode(), name="owners.yaml")
    assert str(refused.value).startswith("owners.yaml: ")
    assert told in str(refused.value)


def test_many_flaws_are_counted_and_the_first_ones_told() -> None:
    document = "tags:\n" + "  - {}\n" * 8
    with pytest.raises(InvalidInput) as refused:
        read_owners(document.encode(), name="o")
    assert str(refused.value).count("is required") == 5
    assert str(refused.value).endswith("and 3 more")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not YAML"):
        read_owners(b"\xff\xfe\x00", name="o")
