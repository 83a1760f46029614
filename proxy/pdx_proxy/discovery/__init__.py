"""Discovery: which engines exist, as a list of `EndpointSpec`s that is sent again after every change.

`pods` reads pods (pure), `pod_watcher` has an informer of `pdx_api.kube` watch them. Imports config only.
"""
