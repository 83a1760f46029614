"""Discovery: which engines exist, as a list of `EndpointSpec`s that is sent again after every change.

`pods` reads a pod (pure), `pod_api` lists and watches pods, `pod_watcher` keeps the list. Imports config only.
"""
