"""Tuned states of callers: kept, found, listed and deleted."""

import re
import secrets
import time
import uuid
from pathlib import PurePath
from typing import IO

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from inference.bus.messages import ModelInfo
from inference.history import pack_ids
from sessions.models import InitialState, InitialStateData
from sessions.state_file import BadStateFile, StateShape, read_state
from sessions.states import checksum

MOST_FILENAME = 255
MOST_STEM = 100
MOST_STATES = 100  # of one caller


class StateInUse(Exception):
    """Sessions begin with the state."""


class TooManyStates(Exception):
    """The caller has MOST_STATES already."""


def shape_of(model: ModelInfo) -> StateShape:
    return StateShape(layers=model.layers, width=model.width)


def keep_state(owner: str, model: ModelInfo, filename: str, file: IO[bytes], size: int) -> InitialState:
    """Check a `.pth` file of `size` bytes and keep its state for a caller. Raises BadStateFile, TooManyStates."""
    if InitialState.objects.filter(owner=owner).count() >= MOST_STATES:
        raise TooManyStates(f"there are {MOST_STATES} states already: delete some first")
    found = read_state(file, shape_of(model))
    if found.model_fingerprint not in ("", model.fingerprint):
        raise BadStateFile(f"model_fingerprint: the state is of another model than {model.id}")
    if found.pending and max(found.pending) >= model.vocab:
        raise BadStateFile(f"pending_ids: expected token ids from 0 to {model.vocab - 1}, got {max(found.pending)}")
    data, pending = found.data, pack_ids(found.pending)
    stem = re.sub(r"[^\w.-]+", "_", PurePath(filename).stem)[:MOST_STEM]
    with transaction.atomic():
        state = InitialState.objects.create(
            key=f"{stem or 'state'}-{uuid7()}",
            owner=owner,
            filename=filename[:MOST_FILENAME],
            model=model.id,
            model_fingerprint=model.fingerprint,
            tensor_count=found.tensors,
            pending_ids=pending,
            checksum=checksum(data + pending),
            size=size,
        )
        InitialStateData.objects.create(state=state, blob=data)
    return state


def find_state(owner: str, key: str) -> InitialState | None:
    if "\0" in key:  # no key has one, and PostgreSQL does not take the question
        return None
    return InitialState.objects.filter(owner=owner, key=key).first()


def list_states(owner: str) -> list[InitialState]:
    """The newest first."""
    return list(InitialState.objects.filter(owner=owner))


def delete_state(owner: str, key: str) -> bool:
    """Whether there was such a state. Raises StateInUse."""
    state = find_state(owner, key)
    if state is None:
        return False
    try:
        state.delete()
    except ProtectedError as error:
        raise StateInUse(f"{len(error.protected_objects)} sessions begin with {key}: delete them first") from error
    except IntegrityError as error:
        raise StateInUse(f"a session has just begun with {key}: delete it first") from error
    return True


def uuid7() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562): it begins with the time, in milliseconds."""
    value = int(time.time() * 1000) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return uuid.UUID(int=value)
