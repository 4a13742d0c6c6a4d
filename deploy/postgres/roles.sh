#!/bin/sh
# The roles of docs/security.md and their database, as an administrator: the owner who migrates, a login for writers, one
# for replicas, and the two roles that they act as. May be repeated: passwords are then set anew.
#
# Connects as psql does (PGHOST, PGUSER, ...). Passwords are read from postgres_owner_password and so on in SECRETS.
set -eu
secrets=${SECRETS:-/run/secrets}
database=${DATABASE:-rag}
for login in owner writer replica; do
    [ -s "$secrets/postgres_${login}_password" ] || { echo "roles: $secrets/postgres_${login}_password is missing" >&2; exit 78; }
done

export SECRETS="$secrets" DATABASE="$database"

# psql reads the passwords itself: what is on a command line, every user of the machine can read.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --dbname=postgres <<'END'
SET client_min_messages = warning;
\set database `printf %s "$DATABASE"`
\set owner_password `cat "$SECRETS/postgres_owner_password"`
\set writer_password `cat "$SECRETS/postgres_writer_password"`
\set replica_password `cat "$SECRETS/postgres_replica_password"`
SELECT format('CREATE ROLE %I NOLOGIN', name) FROM unnest(ARRAY['dats_rag_writer', 'dats_rag_query']) AS name
WHERE name NOT IN (SELECT rolname FROM pg_roles) \gexec
SELECT format('CREATE ROLE %I LOGIN', name) FROM unnest(ARRAY['dats_owner', 'dats_writer', 'dats_replica']) AS name
WHERE name NOT IN (SELECT rolname FROM pg_roles) \gexec
ALTER ROLE dats_owner PASSWORD :'owner_password';
ALTER ROLE dats_writer PASSWORD :'writer_password';
ALTER ROLE dats_replica PASSWORD :'replica_password';
GRANT dats_rag_writer, dats_rag_query TO dats_writer;
GRANT dats_rag_query TO dats_replica;
SELECT format('CREATE DATABASE %I OWNER dats_owner', :'database')
WHERE :'database' NOT IN (SELECT datname FROM pg_database) \gexec
SELECT format('REVOKE ALL ON DATABASE %I FROM PUBLIC', :'database') \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO dats_writer, dats_replica', :'database') \gexec
END
echo "roles: dats_owner, dats_writer and dats_replica are there, and the database $database"
