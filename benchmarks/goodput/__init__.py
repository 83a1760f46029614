"""Which policy serves how much within an SLO: a simulation of discrete events with whole traces (see README.md)."""
