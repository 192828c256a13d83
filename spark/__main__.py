"""`python -m spark`: what `vela trace synth`, `analyze` and `replay` run."""

from spark.cli import main

if __name__ == "__main__":
    main()
