"""`python -m vibayes` is the command line, `vibayes`."""

from vibayes.cli import main

if __name__ == "__main__":
    main()
