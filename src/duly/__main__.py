"""`python -m duly` is the `duly` command."""

from duly.cli.main import main

if __name__ == "__main__":
    main()
