"""Programs that call the policy, as agents of tests."""

PROGRAM = """
import json, os, sys, urllib.request

row = json.loads(sys.stdin.readline())

def complete(prompt, **more):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"prompt": prompt, "max_tokens": 6, **more}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]
"""
"""The beginning of each: its row, and a call of the policy."""
