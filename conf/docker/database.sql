-- The database of ../compose.yaml: two tables with rows, and the agent's role. For psql.
CREATE TABLE public.customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE public.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int NOT NULL REFERENCES public.customers,
    amount numeric(12, 2) NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO public.customers SELECT n, 'customer ' || n FROM generate_series(1, 100) n;
INSERT INTO public.orders (customer, amount) SELECT 1 + n % 100, n FROM generate_series(1, 10000) n;
\i /security/postgres.sql
ALTER ROLE deltatide PASSWORD 'example-password';
