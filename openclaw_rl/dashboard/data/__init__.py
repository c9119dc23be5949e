"""What the pages show, asked of the components and put together: plain functions that know no browser."""
