"""What Alembic runs to apply migrations, on the connection that `migrate` opened."""

from alembic import context

from runyard.stores.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
