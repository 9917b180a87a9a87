"""records-tool (records-tool.c) as an object."""
import json
import subprocess


class Tool:
    def __init__(self, program, data):
        self.process = subprocess.Popen([program, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, op, build_id, refusals=(), **more):
        """True when it was done, False when it was refused with one of `refusals` in the text."""
        self.process.stdin.write(json.dumps({"op": op, "build": build_id, **more}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" not in answer:
            return True
        if any(text in answer["error"] for text in refusals):
            return False
        raise AssertionError(f"{op} {build_id}: {answer['error']}")

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
