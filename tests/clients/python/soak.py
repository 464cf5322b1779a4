"""Informers of the official Python client, for `make soak-clients-all`.

It speaks as the `soak` mode of portolan-go-client does: the line `report` on stdin is answered by one JSON line on stdout; the
end of stdin ends it. The informer asks for no bookmarks by itself; each is started once as it is and once asking for them.
"""

import functools
import json
import logging
import os
import sys
import threading
import time

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.informer import SharedInformer

WATCH_SECONDS = 4
# A stream that says nothing for longer than it may last is dead.
SILENCE = (5, WATCH_SECONDS + 5)


def renew(configuration):
    """Of a kubeconfig the library reads the token's file once; the token in it is renewed each hour."""
    with open(os.environ["KUBECONFIG"], encoding="utf-8") as text:
        users = yaml.safe_load(text)["users"]
    with open(users[0]["user"]["tokenFile"], encoding="utf-8") as token:
        configuration.api_key["authorization"] = "Bearer " + token.read().strip()


class Soaked:
    """One informer and what it was told."""

    def __init__(self, method, namespace, bookmarks):
        self.name = f"{method} {'with' if bookmarks else 'without'} bookmarks"
        self.namespace = namespace
        self.lock = threading.Lock()
        self.gone, self.lists, self.expired = [], 0, {}
        api = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
        api.api_client.configuration.refresh_api_key_hook = renew
        ask = self.around(getattr(api, method), bookmarks)
        self.informer = SharedInformer(ask, namespace=namespace or None)
        self.informer.add_event_handler("DELETED", self.deleted)
        self.informer.add_event_handler("ERROR", self.failed)
        self.informer.start()

    def around(self, function, bookmarks):
        """Watches end soon, lists are counted."""

        @functools.wraps(function)
        def ask(*args, **kwargs):
            kwargs["_request_timeout"] = SILENCE
            if kwargs.get("watch"):
                kwargs["timeout_seconds"] = WATCH_SECONDS
                if bookmarks:
                    kwargs["allow_watch_bookmarks"] = True
                return function(*args, **kwargs)
            listed = function(*args, **kwargs)
            with self.lock:
                self.lists += 1
            return listed

        return ask

    def deleted(self, found):
        meta = found.metadata
        one = {"key": f"{meta.namespace}/{meta.name}", "uid": meta.uid, "at": int(time.time() * 1000)}
        with self.lock:
            self.gone.append(one)

    def failed(self, error):
        if isinstance(error, ApiException) and error.status == 410:
            message = str(error.reason).removeprefix("Expired: ")
            with self.lock:
                self.expired[message] = self.expired.get(message, 0) + 1

    def report(self):
        metas = [found.metadata for found in self.informer.cache.list()]
        items = [{"key": f"{m.namespace}/{m.name}", "uid": m.uid, "rv": m.resource_version} for m in metas]
        with self.lock:
            gone, self.gone = self.gone, []
            return {
                "name": self.name, "resource": "configmaps", "namespace": self.namespace, "items": items,
                "gone": gone, "lists": self.lists, "expired": dict(self.expired),
            }


def main(namespace):
    logging.disable(logging.CRITICAL)
    methods = [("list_config_map_for_all_namespaces", ""), ("list_namespaced_config_map", namespace)]
    all_of_them = [Soaked(*method, bookmarks) for method in methods for bookmarks in (True, False)]
    for command in sys.stdin:
        if command.strip() == "report":
            print(json.dumps({"type": "report", "clients": [one.report() for one in all_of_them]}), flush=True)


main(sys.argv[1])
