"""Checks the files of examples/lora/fine_tune.sh with the packages that users read them with.

Usage: python3 lora_example.py FOLDER EXAMPLES [--peft]. FOLDER has, in addition, unstopped.jsonl: the log of a run that was not stopped,
in the first topology. The losses of the event files are those of the log. Those of the stopped run are bitwise those of the unstopped
one; after the resume, in another topology and with other random numbers of the dropout, they are close. With --peft, the adapters,
loaded by PEFT into the model of transformers, give the outputs of the merged model.
"""
import json
import sys

import torch


def losses_in(path):
    with open(path) as file:
        return {entry["step"]: entry["loss"] for entry in map(json.loads, file)}


def check_losses(folder):
    logged, unstopped = losses_in(f"{folder}/log.jsonl"), losses_in(f"{folder}/unstopped.jsonl")
    assert sorted(logged) == sorted(unstopped) == list(range(1, 201)), (len(logged), len(unstopped))
    events = event_losses(f"{folder}/tensorboard")
    assert len(events) >= 10 and sorted(events) == list(range(1, len(events) + 1)), sorted(events)
    for step, loss in events.items():
        assert loss == torch.tensor(logged[step]).item(), (step, loss, logged[step])
        assert logged[step] == unstopped[step], (step, logged[step], unstopped[step])
    last = range(191, 201)
    mean, expected = (sum(losses[step] for step in last) / len(last) for losses in (logged, unstopped))
    assert abs(mean - expected) < 0.2 * expected, (mean, expected)
    print(f"{len(events)} losses in event files; mean of the last ones {mean:.3f}, without a stop {expected:.3f}")


def event_losses(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder).Reload()
    try:
        return {event.step: event.value for event in events.Scalars("loss")}
    except KeyError:  # as a tensor
        return {event.step: event.tensor_proto.float_val[0] for event in events.Tensors("loss")}


def check_peft(folder, examples):
    sys.path.insert(0, examples)
    import export
    from peft import PeftModel

    model = export.llama(False)
    model.load_state_dict(torch.export.load(f"{folder}/model.pt2").state_dict)
    tokens = export.examples()["input_ids"]
    merged = torch.export.load(f"{folder}/trained.pt2").module()
    with torch.no_grad():
        expected, base = merged(input_ids=tokens), model(input_ids=tokens)
        adapted = PeftModel.from_pretrained(model, f"{folder}/adapters").eval()(input_ids=tokens)
    torch.testing.assert_close(adapted, expected, rtol=1e-4, atol=1e-4)
    assert (adapted - base).abs().max() > 1
    print("PEFT gives the outputs of the merged model")


def main():
    folder, examples = sys.argv[1:3]
    check_losses(folder)
    if "--peft" in sys.argv[3:]:
        check_peft(folder, examples)


main()
