"""The HTML templates beside this file, which share their head and their style."""

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """The template of that file name. A variable that it uses and is not given is an error."""
    environment = Environment(
        loader=PackageLoader("controlplane.lab", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
