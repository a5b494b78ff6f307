#!/bin/sh
# A worker in plain curl: fetches one job at a time from the queue $2 of the server $1 and does
# what its payload says, until the file $3 exists. Survives restarts of the server: what it could
# not tell the server it tries again.
api="$1/api/v1"
queue="$2"
stop="$3"

field() { printf '%s' "$1" | sed -n "s/.*\"$2\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# Posts until the server answers; prints the body. The status code decides: 000 = no answer.
post() {
    tries=0
    while [ $tries -lt 1000 ]; do
        tries=$((tries + 1))
        answer=$(curl -s -m 10 -w '\n%{http_code}' -X POST "$api/$1" -d "$2")
        case "${answer##*
}" in
            000 | 503) continue ;;
            *) printf '%s' "${answer%
*}"; return ;;
        esac
    done
}

while [ ! -e "$stop" ]; do
    job=$(post fetch "{\"queues\":[\"$queue\"],\"worker_id\":\"curl\",\"timeout\":1,\"lease_duration\":5}")
    id=$(field "$job" job_id)
    [ -n "$id" ] || continue
    token=$(field "$job" lease_token)
    case "$(field "$job" kind)" in
        succeed | scheduled)
            post "ack/$id" "{\"lease_token\":\"$token\",\"result\":\"curl\"}" ;;
        retry)
            if [ "$(field "$job" attempt)" = 1 ]; then
                post "fail/$id" "{\"lease_token\":\"$token\",\"error\":\"first try\"}"
            else
                post "ack/$id" "{\"lease_token\":\"$token\"}"
            fi ;;
        die)
            post "fail/$id" "{\"lease_token\":\"$token\",\"error\":\"always\"}" ;;
        release)
            case "$job" in
                *'"checkpoint"'*) post "ack/$id" "{\"lease_token\":\"$token\"}" ;;
                *) post "release/$id" "{\"lease_token\":\"$token\",\"checkpoint\":{\"seen\":1}}" ;;
            esac ;;
        cancel)
            post "jobs/$id/cancel" "{}"
            post "fail/$id" "{\"lease_token\":\"$token\",\"error\":\"stopped\"}" ;;
    esac >/dev/null
done
