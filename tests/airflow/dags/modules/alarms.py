"""What the installation is told, written down."""

import json
import os


def note(context):
    with open(os.path.join(os.environ["TRAINING_STORY"], "alarms"), "a") as file:
        file.write(json.dumps(context["ft_event"]) + "\n")
