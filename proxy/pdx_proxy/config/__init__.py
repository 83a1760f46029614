"""The gateway's settings as frozen values, and their flags. Pure; imports no other package of the gateway."""
