"""Rewards that try to hurt the machine, as the answer names."""

HURTING = """
import os, random, subprocess, sys, time

def hurts(prompt, completion):
    what, _, amount = completion.partition(" ")
    if what == "memory":
        held = []
        while True:
            held.append(bytearray(8 << 20))
    if what == "memories":  # each process by itself stays below the limit
        for _ in range(8):
            if os.fork() == 0:
                held = bytearray(30 << 20)
                time.sleep(3600)
        time.sleep(3600)
    if what == "forks":
        for _ in range(int(amount)):
            if os.fork() == 0:
                time.sleep(3600)
        time.sleep(3600)
    if what == "sessions":
        for _ in range(int(amount)):
            subprocess.Popen(["setsid", "sleep", "3600"])
        time.sleep(3600)
    if what == "burns":
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        time.sleep(3600)
    if what == "prints":
        chunk = b"all work and no play\\n" * 50000
        for _ in range(int(amount)):
            os.write(1, chunk)
    if what == "writes":
        with open(os.path.join(os.path.dirname(__file__), "huge"), "wb") as file:
            while True:
                file.write(bytes(1 << 20))
    if what == "kills_its_group":
        os.killpg(0, 9)
    if what == "meets":  # goes on once so many processes are here
        folder = os.path.join(os.path.dirname(__file__), "here")
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, str(os.getpid())), "w").close()
        while len(os.listdir(folder)) < int(amount):
            time.sleep(0.01)
        return random.random()
    if what == "runs":
        subprocess.run([amount], check=True)
    if what == "sleeps":
        time.sleep(float(amount))
    return 1.0
"""

THREADED = """
import os, threading, time

thread = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
thread.start()

def threaded(prompt, completion):
    if completion == "gone":
        os._exit(7)
    return float(str(thread.native_id) in os.listdir("/proc/self/task"))
"""
