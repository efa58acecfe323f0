"""`python -m tidegate`: hands over to the command line."""

from tidegate.cli.main import main

if __name__ == "__main__":
    main()
