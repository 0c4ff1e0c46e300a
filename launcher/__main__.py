from launcher.cli import command

if __name__ == "__main__":
    raise SystemExit(command())
