"""API keys: `drk_ID_SECRET`. The id is public and finds the row; of the secret only a hash is ever kept.

The hash is one SHA-256. A slow hash (argon2, bcrypt) protects what people think up; 256 random bits cannot be guessed
from their hash, and a slow hash on every request would be a way to exhaust the service.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

_ID_BYTES = 10
_SECRET_BYTES = 32
ENTROPY_BYTES = _ID_BYTES + _SECRET_BYTES
_KEY = re.compile(r"drk_([a-z2-7]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_NOBODYS_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class PlainKey:
    """A key as its holder has it. It is shown once and kept nowhere."""

    key_id: str
    secret: str

    def __str__(self) -> str:
        return f"drk_{self.key_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"PlainKey({self.key_id!r}, ...)"

    @property
    def secret_hash(self) -> str:
        """SHA-256 hex of the secret."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def fits(self, secret_hash: str | None) -> bool:
        """Whether the stored hash is this secret's, in a time that tells nothing. None: there is no such key."""
        return hmac.compare_digest(self.secret_hash, secret_hash or _NOBODYS_HASH) and secret_hash is not None


def make_key(entropy: bytes) -> PlainKey:
    """A key from `ENTROPY_BYTES` random bytes."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"{ENTROPY_BYTES} random bytes are needed")
    key_id = base64.b32encode(entropy[:_ID_BYTES]).decode().lower()
    return PlainKey(key_id, base64.urlsafe_b64encode(entropy[_ID_BYTES:]).decode().rstrip("="))


def read_key(text: str) -> PlainKey | None:
    """The parts of what looks like a key, or None."""
    found = _KEY.fullmatch(text)
    return PlainKey(*found.groups()) if found else None
