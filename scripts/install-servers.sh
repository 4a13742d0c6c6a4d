#!/bin/sh
# Installs the servers that the tests start privately, as Debian packages: RabbitMQ, PostgreSQL, HAProxy and Prometheus.
# Instant when they are there. No system service is started or enabled to start.
set -eu

missing=""
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -x /usr/sbin/haproxy ] || command -v haproxy >/dev/null 2>&1 || missing="$missing haproxy"
command -v prometheus >/dev/null 2>&1 || missing="$missing prometheus"

# Servers named by URL need no program here.
[ -z "${DATS_TEST_RABBITMQ_URL:-}" ] || missing=$(echo "$missing" | sed 's/ rabbitmq-server//')
[ -z "${DATS_TEST_POSTGRES_URL:-}" ] || missing=$(echo "$missing" | sed 's/ postgresql//')
[ -n "$missing" ] || exit 0

by_hand="install$missing yourself, or set DATS_TEST_RABBITMQ_URL and DATS_TEST_POSTGRES_URL"
otherwise="Tests that need them are skipped (where CI=true, they fail)."
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install-servers: not a Debian system: $by_hand. $otherwise" >&2
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "install-servers: not root: run 'sudo $0', or $by_hand. $otherwise" >&2
    exit 0
fi

# Debian's packages start their service when they are installed, unless policy-rc.d says no (exit code 101).
policy=/usr/sbin/policy-rc.d
ours=""
trap 'rm -f $ours' EXIT
trap 'exit 1' INT TERM
if [ ! -e "$policy" ]; then
    ours="$policy"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

log=$(mktemp)
ours="$ours $log"
echo "install-servers: installing$missing (once; a minute or two)"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # one word a package
if ! { apt-get -qq update && apt-get -qq install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "install-servers: apt-get failed: $by_hand" >&2
    exit 1
fi
