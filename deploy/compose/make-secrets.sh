#!/bin/sh
# Makes every secret of docker-compose.yml, once: random, different on each machine, in files beside this script.
# It never changes what is there. Needs openssl. Also writes .env beside docker-compose.yml, which says where they are.
set -eu
umask 022 # containers read these files as other users; the directory keeps this machine's users out

here=$(cd "$(dirname "$0")" && pwd)
secrets=${DATS_SECRETS:-$here/secrets}
env_file=${DATS_ENV_FILE:-$here/../../.env}
if [ -e "$secrets" ]; then
    echo "make-secrets: $secrets is there already; nothing was changed. To begin anew, move it away" >&2
    exit 1
fi
command -v openssl >/dev/null || { echo "make-secrets: openssl is needed" >&2; exit 69; }

mkdir -m 700 "$secrets"
random() { openssl rand -hex 24; }
keep() { printf '%s\n' "$2" >"$secrets/$1"; }

# PostgreSQL: the administrator, the owner who migrates, and a login each for writers and replicas (docs/security.md).
keep postgres_admin_password "$(random)"
for login in owner writer replica; do
    password=$(random)
    keep "postgres_${login}_password" "$password"
    keep "sql_url_$login" "postgresql://dats_$login:$password@postgres:5432/rag"
done

# Qdrant reads its key from its own configuration, the service from a file.
key=$(random)
keep qdrant_api_key "$key"
printf 'service:\n  api_key: %s\n' "$key" >"$secrets/qdrant.yaml"

# RabbitMQ: users with what each has to do, and nobody called guest.
# Source of the hash: rabbitmq.com/docs/passwords, four bytes of salt, then SHA-256 over salt and password.
hashed() {
    salt=$(openssl rand -hex 2)
    {
        printf %s "$salt"
        printf %s "$salt$1" | openssl dgst -sha256 -binary
    } | openssl base64 -A
}
definitions=$here/../rabbitmq/definitions.json
filled=$(cat "$definitions")
for user in writer replica qa cascade; do
    password=$(random)
    keep "amqp_url_$user" "amqp://dats_$user:$password@rabbitmq:5672/"
    hash=$(hashed "$password")
    filled=$(printf '%s\n' "$filled" | sed "s|@HASH_OF_$user@|$hash|")
done
printf '%s\n' "$filled" >"$secrets/rabbitmq_definitions.json"

keep grafana_admin_password "$(random)"

printf 'DATS_SECRETS=%s\n' "$secrets" >>"$env_file"
echo "make-secrets: made $secrets; keep a copy where you keep secrets"
