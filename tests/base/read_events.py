"""Prints the scalars that TensorBoard reads from a directory of event files, as JSON: {tag: [[step, value], ...]}."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
accumulator.Reload()
tags = accumulator.Tags()["scalars"]
print(json.dumps({tag: [[event.step, event.value] for event in accumulator.Scalars(tag)] for tag in tags}))
