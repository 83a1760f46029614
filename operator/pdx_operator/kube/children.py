"""Puts one kind of children, as an informer finds them, into the cache."""

import logging

from pdx_api.kube.client import Json
from pdx_api.kube.kinds import Kind
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.object_shape import UnusableObjectError, require_identity
from pdx_operator.kube.resources import ChildKey

log = logging.getLogger(__name__)


class Children:
    """The children of one kind, in one namespace or in the whole cluster (None); a store of an informer."""

    def __init__(self, cache: Cache, kind: Kind, namespace: str | None) -> None:
        self._cache = cache
        self._kind = kind
        self._namespace = namespace
        self._began: int | None = None
        """Own writes when the present list began; None between lists."""
        self._existing: set[tuple[str, str]] = set()
        """Namespaces and names in the present list."""

    def begin(self) -> None:
        """See `Store`."""
        self._began, self._existing = self._cache.writes, set()

    def put(self, body: Json) -> None:
        """See `Store`."""
        try:
            self._cache.upsert_child(self._kind, body, listed=self._began)
        except UnusableObjectError as error:
            self._skip(error)
            return
        if self._began is not None:
            self._existing.add((body["metadata"]["namespace"], body["metadata"]["name"]))

    def end(self) -> None:
        """See `Store`."""
        self._cache.retain_children(self._kind, self._namespace, self._existing)
        self._began, self._existing = None, set()

    def delete(self, body: Json) -> None:
        """See `Store`."""
        try:
            require_identity(body)
        except UnusableObjectError as error:
            self._skip(error)
            return
        metadata = body["metadata"]
        self._cache.delete_child(metadata["namespace"], ChildKey(self._kind.name, metadata["name"]), metadata["uid"])

    def _skip(self, error: UnusableObjectError) -> None:
        log.warning("Watching %s: %s is skipped", self._kind.plural, error)
