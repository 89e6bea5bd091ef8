"""Programs around the package: the site of the documentation, and the lowest versions of the dependencies."""
