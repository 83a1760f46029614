"""The gateway's processes: the control process, its workers, and the admin port.

The only package that joins the control plane (discovery, health, verification) and the data plane (serving). May
import every other package of the gateway.
"""
